//! Memory shared out between machines, from one budget.
//!
//! The host holds a page for a guest from the guest's first access on, and gets it back when the guest has freed it (free
//! page reporting) or has put it into its balloon. Ten times a second the supervisor asks each machine what the host
//! holds for it and what the guest says it could do without, and decides two things ([`shares`]):
//!
//! * what the host may *hold* for each machine. These limits add up to the budget, so it is kept. A machine that reaches its
//!   limit stands still for a moment, and has the first claim on what the others leave. The last of the budget is lent to
//!   the machine that holds the most, which must go on if it is to give anything back;
//! * if little is left, how much memory each guest should have to itself. Its balloon takes what is above, first what an
//!   idle guest keeps without need. When enough is left again, guests get their memory back.
//!
//! All state is in the machines. The next supervisor finds it there.

mod shares;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::command::State;
use crate::definition::{Definition, Machine, Name};
use crate::part::Part;
use crate::supervisor::House;
use shares::Claim;

/// The time between two looks at the machines.
const INTERVAL: Duration = Duration::from_millis(100);
/// A balloon is not moved for less than this, in bytes.
const STEP: u64 = 4 << 20;
/// Seconds between two statistics of a guest.
const STATISTICS: u32 = 1;

/// A number of bytes: a number of MiB, or text such as `64K`, `512M` and `2G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SizeText", into = "String")]
pub struct Size(pub u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum SizeText {
    Number(u64),
    Text(String),
}

impl TryFrom<SizeText> for Size {
    type Error = String;

    fn try_from(text: SizeText) -> Result<Size, String> {
        let text = match text {
            SizeText::Number(mebibytes) => mebibytes.to_string(),
            SizeText::Text(text) => text,
        };
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "K" | "KB" | "KiB" => 10,
            "" | "M" | "MB" | "MiB" => 20,
            "G" | "GB" | "GiB" => 30,
            _ => 64,
        };
        let bytes = digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1_u64.checked_shl(shift)?));
        bytes
            .map(Size)
            .ok_or_else(|| format!("\"{text}\" is no size: give 512M, 2G or a number of MiB"))
    }
}

impl From<Size> for String {
    fn from(size: Size) -> String {
        size.to_string()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1 << 20) {
            write!(f, "{}M", self.0 >> 20)
        } else {
            write!(f, "{}K", self.0 >> 10)
        }
    }
}

/// The table `memory` of the supervisor's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// What the host may hold for the memory of all machines together.
    pub budget: Size,
}

/// What a machine has of the host's memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Account {
    /// Its RAM.
    pub size: u64,
    /// What the host holds for it.
    #[serde(default)]
    pub held: u64,
    /// What the host may hold for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What its balloon leaves to the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<u64>,
    /// What the guest could do without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// Whether it stands still because it holds all that it may.
    #[serde(default)]
    pub waits: bool,
}

/// Shares out `budget` bytes between all machines, for ever.
pub(crate) async fn share(house: Rc<House>, budget: u64) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The processes whose guests were asked for statistics.
    let mut polled: BTreeMap<Name, i32> = BTreeMap::new();
    loop {
        ticks.tick().await;
        let mut machines = Vec::new();
        for part in house.machines() {
            if !matches!(part.state(), State::Running | State::Paused) {
                part.account.set(None);
                continue;
            }
            let (Some(account), Some(pid)) = (ask(&part).await, part.pid()) else { continue };
            part.account.set(Some(account));
            if account.actual.is_some() && polled.insert(part.name.clone(), pid) != Some(pid) {
                let property = json!({
                    "path": "/machine/peripheral/balloon0",
                    "property": "guest-stats-polling-interval",
                    "value": STATISTICS,
                });
                part.tell("qom-set", property).await;
            }
            machines.push((part, account));
        }
        let claims: Vec<Claim> =
            machines.iter().map(|(part, account)| claim(part, account)).collect();
        let shares = shares::share(budget, &claims);
        // Limits become lower before others become higher.
        for lowers in [true, false] {
            for ((part, account), share) in machines.iter().zip(&shares) {
                let now = account.limit.unwrap_or(u64::MAX);
                if now != share.limit && (share.limit < now) == lowers {
                    part.tell("x-ring3-limit-memory", json!({ "value": share.limit })).await;
                }
            }
        }
        for ((part, account), share) in machines.iter().zip(&shares) {
            let (Some(target), Some(actual)) = (share.target, account.actual) else { continue };
            let is_whole = target == account.size && actual < target;
            if is_whole || target.abs_diff(actual) >= STEP {
                part.tell("balloon", json!({ "value": target })).await;
            }
        }
    }
}

fn claim(part: &Part, account: &Account) -> Claim {
    let (reserve, weight) = match &*part.definition.borrow() {
        Definition::Machine(Machine { memory_reserve, memory_weight, .. }) => (
            memory_reserve.map_or(0, |size| size.0.min(account.size)),
            memory_weight.unwrap_or(shares::WEIGHT),
        ),
        Definition::Server(_) => (0, shares::WEIGHT),
    };
    let Account { size, held, actual, available, waits, .. } = *account;
    Claim { size, held, actual, available, waits, reserve, weight }
}

/// Asks a machine what it has. None if it does not know or does not answer.
async fn ask(part: &Part) -> Option<Account> {
    let answer = part.ask_soon("x-ring3-memory", json!({})).await?;
    let waits = answer["shortage"]["scarce"] == "machine";
    answer.get("held")?;
    let account: Account = serde_json::from_value(answer).ok()?;
    Some(Account { waits, ..account })
}
