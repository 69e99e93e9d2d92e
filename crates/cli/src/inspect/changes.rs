//! What has changed from one look at a machine to the next.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Returns the lines of `now` that are not in `before`, each with its old value, and names that are gone. A line
/// is a path, a space, and a value; a part without parts is a value alone.
pub(super) fn in_text(before: &str, now: &str) -> String {
    let mut old: BTreeMap<&str, &str> = named(before).collect();
    let mut text = String::new();
    let mut tell = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = text.write_fmt(line);
    };
    for (name, value) in named(now) {
        let gap = if name.is_empty() { "" } else { " " };
        match old.remove(name) {
            Some(old) if old == value => {}
            Some(old) => tell(format_args!("{name}{gap}{old} -> {value}\n")),
            None => tell(format_args!("{name}{gap}nothing -> {value}\n")),
        }
    }
    for (name, old) in old {
        tell(format_args!("{name} {old} -> nothing\n"));
    }
    text
}

/// Returns the lines of `text` as names and values.
fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_value = text.lines().count() == 1;
    text.lines().map(move |line| match line.split_once(' ') {
        Some(parts) if !is_value => parts,
        _ => ("", line),
    })
}

/// Returns the values in `now` that `before` has not, by their paths, and null for each that is gone.
pub(super) fn in_json(before: &Value, now: &Value) -> Map<String, Value> {
    let mut changes = Map::new();
    compare(Some(before), now, &mut String::new(), &mut changes);
    gone(before, Some(now), &mut String::new(), &mut changes);
    changes
}

/// Calls `act` for each part of `value`, with its name after `path`.
fn for_parts(value: &Value, path: &mut String, mut act: impl FnMut(&str, &Value, &mut String)) {
    let mut with = |name: &str, part: &Value| {
        let len = path.len();
        if len > 0 {
            path.push('/');
        }
        path.push_str(name);
        act(name, part, path);
        path.truncate(len);
    };
    match value {
        Value::Object(parts) => parts.iter().for_each(|(name, part)| with(name, part)),
        Value::Array(parts) => {
            parts.iter().enumerate().for_each(|(at, part)| with(&at.to_string(), part));
        }
        _ => {}
    }
}

fn part<'a>(value: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    match value? {
        Value::Array(parts) => parts.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    }
}

fn has_parts(value: &Value) -> bool {
    matches!(value, Value::Object(parts) if !parts.is_empty())
        || matches!(value, Value::Array(parts) if !parts.is_empty())
}

fn compare(
    before: Option<&Value>,
    now: &Value,
    path: &mut String,
    changes: &mut Map<String, Value>,
) {
    if has_parts(now) {
        for_parts(now, path, |name, value, path| compare(part(before, name), value, path, changes));
    } else if before != Some(now) {
        changes.insert(path.clone(), now.clone());
    }
}

fn gone(before: &Value, now: Option<&Value>, path: &mut String, changes: &mut Map<String, Value>) {
    if has_parts(before) {
        for_parts(before, path, |name, value, path| gone(value, part(now, name), path, changes));
    } else if now.is_none() {
        changes.insert(path.clone(), Value::Null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_different_is_shown() {
        let before = "time 0x1\nis a word\nlist/0 0x5\nlist/1 0x6\n";
        let now = "time 0x2\nis a word\nlist/0 0x5\nnew yes\n";
        let changes = "time 0x1 -> 0x2\nnew nothing -> yes\nlist/1 0x6 -> nothing\n";
        assert_eq!(in_text(before, now), changes);
        assert_eq!(in_text("0x5\n", "0x6\n"), "0x5 -> 0x6\n");
        assert_eq!(in_text("a word\n", "another word\n"), "a word -> another word\n");
        let before = json!({"time": 1, "is": "a word", "list": [5, 6], "was": {"part": 1}});
        let now = json!({"time": 2, "is": "a word", "list": [5], "new": {"part": true}});
        let changes = json!({"time": 2, "list/1": null, "new/part": true, "was/part": null});
        assert_eq!(Value::Object(in_json(&before, &now)), changes);
        assert_eq!(Value::Object(in_json(&json!(1), &json!(2))), json!({"": 2}));
        assert_eq!(Value::Object(in_json(&json!([]), &json!([1]))), json!({"0": 1}));
    }
}
