//! The time in which the process of a part works.

use std::collections::BTreeMap;
use std::future;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::select;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tracing::warn;

use super::{Life, Order, Over, Reply, log};
use crate::command::State;
use crate::definition::Definition;
use crate::error::Refusal;
use crate::launching::Launcher;
use crate::link::{Link, Said};
use crate::process::Process;
use crate::record::Wanted;

/// The interval at which a process is asked whether it answers.
const PING: Duration = Duration::from_secs(2);
/// How long the supervisor waits for a new connection before it looks at other things.
const CONNECT: Duration = Duration::from_millis(200);
/// How long a machine may take to end after its guest did not, and a server to close its files.
const LAST_ACTS: Duration = Duration::from_secs(10);

/// The purpose of a question.
enum Purpose {
    /// To hear whether the process answers. A machine says whether its guest runs.
    Ping,
    /// To do what somebody ordered; then the part is in this state, if it changes.
    Order(Reply, Option<State>),
    /// Nobody waits for the answer.
    Nothing,
}

/// How far an end has come.
#[derive(Clone, Copy)]
enum Stage {
    /// The guest was asked to switch off, until that moment.
    Asked(Instant),
    /// The process was asked to end, until that moment.
    Told(Instant),
}

impl Stage {
    fn until(self) -> Instant {
        match self {
            Stage::Asked(until) | Stage::Told(until) => until,
        }
    }
}

/// What is known of a process while it works.
struct Watch {
    process: Process,
    link: Option<Link>,
    questions: BTreeMap<u64, Purpose>,
    /// Since when an answer, or a connection, is missing.
    silent: Option<Instant>,
    stage: Option<Stage>,
    /// Whether it is to be stopped once it has answered: only then it is known whether a guest runs.
    is_to_end: bool,
    guest_switched_off: bool,
}

impl Watch {
    fn ask(&mut self, command: &str, arguments: &Value, purpose: Purpose) {
        if let Some(link) = &mut self.link {
            let number = link.ask(command, arguments);
            self.questions.insert(number, purpose);
        }
    }

    fn ping(&mut self, definition: &Definition) {
        let is_asked = self.questions.values().any(|purpose| matches!(purpose, Purpose::Ping));
        if let Some(link) = &mut self.link
            && !is_asked
        {
            let number = link.ping(definition);
            self.questions.insert(number, Purpose::Ping);
            self.silent.get_or_insert_with(Instant::now);
        }
    }

    /// Returns when the process counts as hung.
    fn hangs(&self, definition: &Definition) -> Option<Instant> {
        Some(self.silent? + definition.deadline()?)
    }

    async fn said(link: &mut Option<Link>) -> Said {
        match link {
            Some(link) => link.said().await,
            None => future::pending().await,
        }
    }
}

impl Life {
    /// Watches a process that has answered, until it has ended.
    pub(super) async fn watch(&mut self, process: Process, link: Link) -> Over {
        let definition = self.part.definition.borrow().clone();
        let mut watch = Watch {
            process,
            link: Some(link),
            questions: BTreeMap::new(),
            silent: None,
            stage: None,
            is_to_end: self.part.wanted.get() == Wanted::Ended,
            guest_switched_off: false,
        };
        self.begin(&mut watch, &definition);
        let _launcher = Launcher::of(&self.house, &self.part.name, &definition);
        let mut ticks = interval(PING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let until = watch.stage.map(Stage::until);
            let hangs = watch.hangs(&definition);
            select! {
                end = watch.process.ended() => return self.over(end, watch.guest_switched_off),
                said = Watch::said(&mut watch.link) => self.hear(&mut watch, &definition, said),
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(&mut watch, &definition, order),
                    // The supervisor ends, and this process goes on.
                    None => return Over { reason: "the supervisor has ended".to_owned(), is_orderly: true },
                },
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    Life::insist(&mut watch);
                }
                () = sleep_until(hangs.unwrap_or_else(Instant::now)), if hangs.is_some() => {
                    watch.process.end_at_once().await;
                    let silence = watch.silent.map_or(0, |silent| silent.elapsed().as_secs());
                    let reason = format!("it hung: no answer for {silence} s");
                    return Over { reason, is_orderly: false };
                }
                _ = ticks.tick() => self.look(&mut watch, &definition).await,
            }
        }
    }

    /// Lets the guest of a machine go on, if it is to. A server is ready.
    fn begin(&mut self, watch: &mut Watch, definition: &Definition) {
        match definition {
            Definition::Machine(_) if self.part.wanted.get() == Wanted::Running => {
                watch.ask("cont", &json!({}), Purpose::Nothing);
                self.enter(State::Running);
            }
            // One that another supervisor has started may run: the first answer tells.
            Definition::Machine(_) => self.enter(State::Paused),
            Definition::Server(_) => self.enter(State::Running),
        }
        for reply in self.waiting.drain(..) {
            let _ = reply.send(Ok(json!({})));
        }
    }

    /// Asks the process whether it answers, by a new connection if there is none.
    async fn look(&mut self, watch: &mut Watch, definition: &Definition) {
        let place = self.house.place.part(&self.part.name);
        if watch.link.is_none()
            && let Ok(Ok(link)) = timeout(CONNECT, Link::open(definition, &place.control())).await
        {
            watch.link = Some(link);
            watch.silent = None;
        }
        watch.ping(definition);
        if let Err(error) = log::shorten(&place.log()) {
            warn!("the log of {} cannot be shortened: {error}", self.part.name);
        }
    }

    fn hear(&mut self, watch: &mut Watch, definition: &Definition, said: Said) {
        watch.silent = match said {
            Said::Closed => watch.silent.or_else(|| Some(Instant::now())),
            Said::Answer(..) | Said::Event(_) => None,
        };
        match said {
            Said::Answer(number, answer) => match watch.questions.remove(&number) {
                Some(Purpose::Ping) => {
                    if let Ok(status) = &answer
                        && let Some(is_running) = status["running"].as_bool()
                    {
                        self.note(watch, is_running);
                    }
                    if std::mem::take(&mut watch.is_to_end) {
                        self.obey(watch, definition, Order::Stop);
                    }
                }
                Some(Purpose::Order(reply, state)) => {
                    if let (Ok(_), Some(state)) = (&answer, state) {
                        self.enter(state);
                    }
                    let name = self.part.name.clone();
                    let _ = reply.send(answer.map_err(|reason| Refusal::Part { name, reason }));
                }
                Some(Purpose::Nothing) | None => {}
            },
            Said::Event(event) => {
                let kind = event["event"].as_str().unwrap_or_default();
                match kind {
                    "STOP" => self.note(watch, false),
                    "RESUME" => self.note(watch, true),
                    "SHUTDOWN" => {
                        watch.guest_switched_off = event["data"]["guest"].as_bool() == Some(true);
                    }
                    _ => {}
                }
                self.house.tell(kind, &self.part.name, &event["data"]);
            }
            Said::Closed => {
                watch.link = None;
                // Those who wait for an answer learn that none comes.
                watch.questions.clear();
            }
        }
    }

    /// Notes whether the guest of a machine runs: tools may have changed that by QMP.
    fn note(&mut self, watch: &Watch, is_running: bool) {
        if watch.stage.is_none() {
            self.enter(if is_running { State::Running } else { State::Paused });
        }
    }

    fn obey(&mut self, watch: &mut Watch, definition: &Definition, order: Order) {
        let is_machine = matches!(definition, Definition::Machine(_));
        let name = || self.part.name.clone();
        match order {
            Order::Start(reply) if is_machine => {
                self.want(Wanted::Running);
                (watch.stage, watch.is_to_end) = (None, false);
                watch.ask("cont", &json!({}), Purpose::Order(reply, Some(State::Running)));
            }
            Order::Start(reply) | Order::Launch(reply) => {
                let _ = reply.send(Ok(json!({})));
            }
            Order::Pause(reply) if is_machine => {
                self.want(Wanted::Paused);
                watch.ask("stop", &json!({}), Purpose::Order(reply, Some(State::Paused)));
            }
            Order::Pause(reply) => {
                let _ = reply.send(Err(Refusal::NoMachine(name())));
            }
            Order::Ask { command, arguments, reply } => {
                watch.ask(command, &arguments, Purpose::Order(reply, None));
            }
            Order::Stop => {
                self.want(Wanted::Ended);
                self.begin_end(watch, definition);
                self.enter(State::Stopping);
            }
            Order::Kill => {
                self.want(Wanted::Ended);
                self.enter(State::Stopping);
                watch.process.signal(Signal::KILL);
            }
            Order::Forget(reply) => {
                let _ = reply.send(Err(Refusal::Runs(name())));
            }
        }
    }

    /// Asks a guest to switch off, or a server to end.
    fn begin_end(&self, watch: &mut Watch, definition: &Definition) {
        match definition {
            Definition::Server(_) => {
                watch.process.signal(Signal::TERM);
                watch.stage = Some(Stage::Told(Instant::now() + LAST_ACTS));
            }
            Definition::Machine(machine) if self.part.state() == State::Running => {
                watch.ask("system_powerdown", &json!({}), Purpose::Nothing);
                let patience = Duration::from_secs(machine.stop_timeout.into());
                watch.stage = Some(Stage::Asked(Instant::now() + patience));
            }
            // A guest that waits cannot switch off.
            Definition::Machine(_) if watch.stage.is_none() => Life::tell_to_quit(watch),
            Definition::Machine(_) => {}
        }
    }

    fn tell_to_quit(watch: &mut Watch) {
        watch.ask("quit", &json!({}), Purpose::Nothing);
        watch.stage = Some(Stage::Told(Instant::now() + LAST_ACTS));
    }

    /// Goes on with an end for which the process takes too long.
    fn insist(watch: &mut Watch) {
        if matches!(watch.stage, Some(Stage::Asked(_))) {
            Life::tell_to_quit(watch);
        } else {
            watch.process.signal(Signal::KILL);
            watch.stage = None;
        }
    }
}
