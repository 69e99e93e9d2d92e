//! `query-qmp-schema`: all commands and events with their types, by which tools find out what they can ask
//! for.
//!
//! The types are in a text, [`TEXT`], whose beginning explains its form.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::commands::{Machine, none};
use crate::protocol::{Arguments, Failure};

/// All types, commands and events.
const TEXT: &str = include_str!("schema.txt");

/// Types that need no explanation, and their types in JSON.
const BUILTIN: [(&str, &str); 6] = [
    ("str", "string"),
    ("int", "int"),
    ("number", "number"),
    ("bool", "boolean"),
    ("any", "value"),
    ("null", "null"),
];

/// The type of commands without arguments, and of those that return nothing.
const EMPTY: &str = "q_empty";

/// Executes `query-qmp-schema`.
pub(crate) fn query(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(entities())
}

/// Returns the entities of the schema.
pub(crate) fn entities() -> Value {
    let mut all: Vec<Value> = BUILTIN
        .iter()
        .map(|(name, json)| json!({"name": name, "meta-type": "builtin", "json-type": json}))
        .collect();
    all.push(json!({"name": EMPTY, "meta-type": "object", "members": []}));
    for line in TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (Some(kind), Some(name)) = (words.next(), words.next()) else { continue };
        let rest: Vec<_> = words.collect();
        match kind {
            "enum" => all.push(json!({
                "name": name, "meta-type": "enum", "values": rest,
                "members": rest.iter().map(|value| json!({"name": value})).collect::<Vec<_>>(),
            })),
            "alternate" => all.push(json!({
                "name": name, "meta-type": "alternate",
                "members": rest.iter().map(|member| json!({"type": member})).collect::<Vec<_>>(),
            })),
            "object" => all.push(object(name, &rest)),
            "event" => {
                let (argument, inner) = arguments_of(name, &rest);
                all.extend(inner);
                all.push(json!({"name": name, "meta-type": "event", "arg-type": argument}));
            }
            _ => {
                let end = rest.iter().position(|word| *word == "->").unwrap_or(rest.len());
                let (argument, inner) = arguments_of(name, &rest[..end]);
                all.extend(inner);
                let returned =
                    rest.get(end + 1).map_or(EMPTY.to_owned(), |returned| (*returned).to_owned());
                all.push(json!({
                    "name": name, "meta-type": "command", "arg-type": argument, "ret-type": returned, "allow-oob": true,
                }));
            }
        }
    }
    all.extend(lists());
    all.into()
}

/// Returns the type of the arguments, and its entity if the command has a type of its own.
fn arguments_of(name: &str, members: &[&str]) -> (String, Option<Value>) {
    match members {
        [] => (EMPTY.to_owned(), None),
        [single] if single.starts_with(':') => (single[1..].to_owned(), None),
        members => {
            let argument = format!("q_obj_{name}-arg");
            let object = object(&argument, members);
            (argument, Some(object))
        }
    }
}

/// Makes an object type from its members. Behind a bar stands the member that determines the variant.
fn object(name: &str, words: &[&str]) -> Value {
    let end = words.iter().position(|word| *word == "|").unwrap_or(words.len());
    let member = |word: &&str| {
        let (name, kind) = word.split_once(':').unwrap_or((word, "any"));
        match name.strip_suffix('?') {
            Some(name) => json!({"name": name, "type": kind, "default": null}),
            None => json!({"name": name, "type": kind}),
        }
    };
    let members: Vec<_> = words[..end].iter().map(member).collect();
    let mut object = json!({"name": name, "meta-type": "object", "members": members});
    if let Some((tag, cases)) = words.get(end + 1..).and_then(<[_]>::split_first) {
        let variant = |word: &&str| {
            let (case, kind) = word.split_once('=').unwrap_or((word, EMPTY));
            json!({"case": case, "type": kind})
        };
        object["tag"] = json!(tag);
        object["variants"] = cases.iter().map(variant).collect();
    }
    object
}

/// Returns the types of lists that the schema uses.
fn lists() -> Vec<Value> {
    let words = TEXT.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    let names: BTreeSet<_> =
        words.filter_map(|word| word.rsplit_once('[')?.1.strip_suffix(']')).collect();
    let list = |name: &&str| json!({"name": format!("[{name}]"), "meta-type": "array", "element-type": name});
    names.iter().map(list).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::commands::names;
    use crate::news::News;
    use crate::protocol::EVENTS;

    fn by_name() -> BTreeMap<String, Value> {
        let Value::Array(all) = entities() else { panic!("it is a list") };
        let count = all.len();
        let all: BTreeMap<_, _> = all
            .into_iter()
            .map(|entity| (entity["name"].as_str().unwrap().to_owned(), entity))
            .collect();
        assert_eq!(all.len(), count, "two have the same name");
        all
    }

    /// Asserts that `value` is of type `kind`.
    #[track_caller]
    pub(crate) fn conforms(all: &BTreeMap<String, Value>, value: &Value, kind: &str) {
        let entity = all.get(kind).unwrap_or_else(|| panic!("there is no type {kind}"));
        let is_right = match entity["meta-type"].as_str().unwrap() {
            "builtin" => match entity["json-type"].as_str().unwrap() {
                "string" => value.is_string(),
                "int" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                "boolean" => value.is_boolean(),
                "null" => value.is_null(),
                _ => true,
            },
            "enum" => entity["values"].as_array().unwrap().contains(value),
            "array" => {
                for element in value.as_array().unwrap_or_else(|| panic!("{value} is no {kind}")) {
                    conforms(all, element, entity["element-type"].as_str().unwrap());
                }
                true
            }
            "object" => {
                let members = entity["members"].as_array().unwrap();
                let object = value.as_object().unwrap_or_else(|| panic!("{value} is no {kind}"));
                for member in members {
                    let name = member["name"].as_str().unwrap();
                    match object.get(name) {
                        Some(value) => conforms(all, value, member["type"].as_str().unwrap()),
                        None => {
                            assert!(member.get("default").is_some(), "{name} is missing: {value}");
                        }
                    }
                }
                for name in object.keys() {
                    assert!(
                        members.iter().any(|member| member["name"] == **name),
                        "{kind} has no {name}"
                    );
                }
                true
            }
            _ => true,
        };
        assert!(is_right, "{value} is no {kind}");
    }

    #[test]
    fn all_commands_and_events_are_listed() {
        let all = by_name();
        let of_kind = |kind: &str| {
            let found = all.iter().filter(|(_, entity)| entity["meta-type"] == kind);
            found.map(|(name, _)| name.clone()).collect::<BTreeSet<_>>()
        };
        assert_eq!(of_kind("command"), names().map(str::to_owned).collect());
        assert_eq!(of_kind("event"), EVENTS.iter().map(|name| (*name).to_owned()).collect());
    }

    #[test]
    fn all_types_are_defined() {
        let all = by_name();
        let check = |name: &Value| {
            let name = name.as_str().unwrap();
            assert!(all.contains_key(name), "there is no type {name}");
        };
        for entity in all.values() {
            for key in ["arg-type", "ret-type", "element-type"] {
                entity.get(key).into_iter().for_each(check);
            }
            for key in ["members", "variants"] {
                let parts = entity.get(key).and_then(Value::as_array);
                parts.into_iter().flatten().filter_map(|part| part.get("type")).for_each(check);
            }
        }
    }

    #[test]
    fn fixed_answers_have_their_types() {
        let all = by_name();
        let (sender, _door) = ring3_vm::door();
        let screen = Some("127.0.0.1:5901".to_owned());
        let facts = crate::Facts { screen, ..crate::Facts::default() };
        let machine = Machine::new(sender.control(), facts, News::default()).unwrap();
        for name in [
            "query-target",
            "query-machines",
            "query-dump",
            "query-dump-guest-memory-capability",
            "query-events",
            "query-commands",
            "query-cpu-definitions",
            "query-command-line-options",
            "query-chardev",
            "query-chardev-backends",
            "query-kvm",
            "query-uuid",
            "query-name",
            "query-version",
            "query-tpm-models",
            "query-iothreads",
            "query-migrate",
            "query-migrate-capabilities",
            "query-current-machine",
            "query-mice",
            "query-replay",
            "query-status",
            "query-vnc",
            "query-vnc-servers",
            "query-cpus-fast",
            "qom-list-types",
            "query-qmp-schema",
        ] {
            let command = crate::protocol::Command {
                name: name.to_owned(),
                arguments: Arguments::new(),
                is_out_of_band: false,
            };
            let value =
                machine.execute(command).unwrap_or_else(|failure| panic!("{name}: {failure:?}"));
            conforms(&all, &value, all[name]["ret-type"].as_str().unwrap());
        }
    }
}
