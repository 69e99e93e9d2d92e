//! What machines may transfer: each server of disks and each switch learns the weights and limits of all machines.
//!
//! The servers themselves share out their `bandwidth`. A server of disks knows machines by their names, and a switch by the
//! numbers of their processes, which nobody can forge.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::command::State;
use crate::definition::{Definition, Name, Server};
use crate::memory::Size;
use crate::part::Part;
use crate::supervisor::House;

/// What is said to a server: the arguments of its command `share`, by the name of a machine, or by `*` for all.
type Said = BTreeMap<String, Value>;

/// Tells servers what machines may transfer, for ever.
pub(crate) async fn tell(house: Rc<House>) {
    let mut events = house.events();
    // By server: its process, and what was said to that.
    let mut told: BTreeMap<Name, (i32, Said)> = BTreeMap::new();
    loop {
        for server in house.servers() {
            let Some(pid) = server.pid().filter(|_| server.state() == State::Running) else {
                continue;
            };
            let before = told.remove(&server.name).filter(|(process, _)| *process == pid);
            let mut said = before.map(|(_, said)| said).unwrap_or_default();
            for (name, arguments) in to_be_said(&server, &house.machines()) {
                // A server that was told nothing knows the usual.
                let usual = usual(&name);
                if said.get(&name).unwrap_or(&usual) != &arguments
                    && server.ask_soon("share", arguments.clone()).await.is_some()
                {
                    said.insert(name, arguments);
                }
            }
            told.insert(server.name.clone(), (pid, said));
        }
        // One who is too slow for all events sees what has come of them.
        let _ = events.recv().await;
    }
}

fn usual(name: &str) -> Value {
    if name == "*" { json!({ "machines": [] }) } else { json!({ "client": name }) }
}

/// Returns what a server is to know.
fn to_be_said(server: &Part, machines: &[Rc<Part>]) -> Said {
    let is_switch = match &*server.definition.borrow() {
        Definition::Server(Server::Vblock(_)) => false,
        Definition::Server(Server::Switch(switch)) if switch.bandwidth.is_some() => true,
        _ => return Said::new(),
    };
    let terms = |machine: &Part| match &*machine.definition.borrow() {
        Definition::Machine(machine) if is_switch => {
            given(machine.network_weight, machine.network_bandwidth)
        }
        Definition::Machine(machine) => given(machine.disk_weight, machine.disk_bandwidth),
        Definition::Server(_) => json!({}),
    };
    if !is_switch {
        let say = |machine: &Rc<Part>| {
            let mut arguments = terms(machine);
            arguments["client"] = json!(machine.name);
            (machine.name.to_string(), arguments)
        };
        return machines.iter().map(say).collect();
    }
    let say = |machine: &Rc<Part>| {
        let mut arguments = terms(machine);
        let is_usual = arguments.as_object().is_none_or(serde_json::Map::is_empty);
        arguments["pid"] = json!(machine.pid().filter(|_| !is_usual)?);
        Some(arguments)
    };
    let machines: Vec<_> = machines.iter().filter_map(say).collect();
    Said::from([("*".to_owned(), json!({ "machines": machines }))])
}

/// Returns those arguments that are given.
fn given(weight: Option<u32>, bandwidth: Option<Size>) -> Value {
    let mut terms = json!({});
    if let Some(weight) = weight {
        terms["weight"] = json!(weight);
    }
    if let Some(Size(bytes)) = bandwidth {
        terms["bandwidth"] = json!(bytes);
    }
    terms
}
