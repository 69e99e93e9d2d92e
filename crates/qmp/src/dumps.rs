//! Memory in files for debuggers: the commands `dump-guest-memory` and `query-dump`.
//!
//! The only format is ELF, which [`ring3_snapshot::dump`] describes. The machine stands still while its memory
//! is written, also with `detach`; then the client need not wait.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use ring3_snapshot::{DumpOptions, Progress};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, done, none};
use crate::protocol::{self, Arguments, Failure, read};

/// The dump that was last begun.
#[derive(Debug, Default)]
pub(crate) struct Dumps(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// "none", "active", "completed" or "failed".
    status: Option<&'static str>,
    progress: Arc<Progress>,
}

impl State {
    fn show(&self) -> Value {
        let Progress { written, total } = &*self.progress;
        json!({
            "status": self.status.unwrap_or("none"),
            "completed": written.load(Ordering::Relaxed),
            "total": total.load(Ordering::Relaxed),
        })
    }
}

impl Dumps {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has left the state consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Executes `dump-guest-memory`.
pub(crate) fn dump(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Dump {
        paging: bool,
        protocol: String,
        #[serde(default)]
        detach: bool,
        begin: Option<u64>,
        length: Option<u64>,
        format: Option<String>,
    }
    let Dump { paging, protocol, detach, begin, length, format } = read(arguments)?;
    if let Some(format) = format.filter(|format| format != "elf") {
        return Err(Failure::generic(format!("there is no format '{format}': use elf")));
    }
    let Some(path) = protocol.strip_prefix("file:").map(PathBuf::from) else {
        return Err(Failure::generic(format!("'{protocol}' is no file: use file:PATH")));
    };
    let range = match (begin, length) {
        (None, None) => None,
        (Some(begin), Some(length)) => Some(begin..begin.saturating_add(length)),
        _ => return Err(Failure::generic("begin and length belong together: give both or none")),
    };
    let progress = Arc::new(Progress::default());
    {
        let mut state = machine.dumps().state();
        if state.status == Some("active") {
            return Err(Failure::generic("a dump is being written: wait for its end"));
        }
        *state = State { status: Some("active"), progress: Arc::clone(&progress) };
    }
    let (control, dumps, news) = (machine.control.clone(), machine.dumps().clone(), machine.news());
    let work = move || {
        let dumped =
            ring3_snapshot::dump(&control, &path, DumpOptions { paging, range }, &progress);
        let failure = dumped.err().map(|error| error.to_string());
        let mut data = {
            let mut state = dumps.state();
            state.status = Some(if failure.is_some() { "failed" } else { "completed" });
            json!({"result": state.show()})
        };
        if let Some(failure) = &failure {
            data["error"] = json!(failure);
        }
        news.tell(protocol::news("DUMP_COMPLETED", Some(data)));
        failure.map_or(Ok(()), |failure| Err(Failure::generic(failure)))
    };
    if detach {
        let started = thread::Builder::new().name("dump".into()).spawn(work);
        if let Err(error) = started {
            machine.dumps().state().status = Some("failed");
            return Err(Failure::generic(format!("cannot start a thread: {error}")));
        }
    } else {
        work()?;
    }
    done()
}

/// Executes `query-dump`.
pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(machine.dumps().state().show())
}

/// Executes `query-dump-guest-memory-capability`.
pub(crate) fn capability(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(json!({"formats": ["elf"]}))
}
