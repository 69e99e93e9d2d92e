//! Lists of properties such as `file=disk.img,format=raw` (QEMU, "Invocation"). A comma in a value is written
//! twice, and some options allow leaving out the key of the first value. The other form is a JSON object;
//! nested members have names with dots: `file.driver`.

use std::fmt;

use serde_json::Value;

use super::Reason;

/// The properties of an option, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Properties(Vec<(String, String)>);

impl Properties {
    /// Reads `text`. `first` is the key of a first value without one; other properties without a value are
    /// `on`.
    pub(crate) fn parse(text: &str, first: Option<&str>) -> Properties {
        let parts = split(text);
        let property = |(index, part): (usize, &String)| match (part.split_once('='), first) {
            (Some((key, value)), _) => (key.to_owned(), value.to_owned()),
            (None, Some(key)) if index == 0 => (key.to_owned(), part.clone()),
            (None, _) => (part.clone(), "on".to_owned()),
        };
        let named = parts.iter().enumerate().filter(|(_, part)| !part.is_empty());
        Properties(named.map(property).collect())
    }

    /// Reads `text`, which is a JSON object if it begins with a brace.
    pub(crate) fn parse_either(text: &str, first: Option<&str>) -> Result<Properties, Reason> {
        if !text.trim_start().starts_with('{') {
            return Ok(Properties::parse(text, first));
        }
        let value =
            serde_json::from_str(text).map_err(|error| format!("JSON parse error, {error}"))?;
        let mut properties = Vec::new();
        flatten("", &value, &mut properties);
        Ok(Properties(properties))
    }

    /// Adds a property.
    pub(crate) fn add(&mut self, key: &str, value: &str) {
        self.0.push((key.to_owned(), value.to_owned()));
    }

    /// Takes the properties whose keys begin with `prefix` and a dot, and removes that beginning.
    pub(crate) fn take_group(&mut self, prefix: &str) -> Properties {
        let inside = |key: &str| {
            key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned)
        };
        let group = self.0.extract_if(.., |(key, _)| inside(key).is_some());
        let group = group.filter_map(|(key, value)| Some((inside(&key)?, value)));
        Properties(group.collect())
    }

    /// Returns whether no property is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns keys and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Removes all properties `key`, and returns the value of the last one.
    pub(crate) fn take(&mut self, key: &str) -> Option<String> {
        self.take_all(key).pop()
    }

    /// Removes all properties `key`, and returns their values.
    pub(crate) fn take_all(&mut self, key: &str) -> Vec<String> {
        self.0.extract_if(.., |(name, _)| name == key).map(|(_, value)| value).collect()
    }

    /// Refuses the properties that were not taken. `known` names the possible ones.
    pub(crate) fn finish(self, known: &str) -> Result<(), Reason> {
        self.finish_all(known)
    }

    /// Refuses the properties that were not taken, as [`Properties::finish`], without consuming the list.
    pub(crate) fn finish_all(&self, known: &str) -> Result<(), Reason> {
        self.iter().next().map_or(Ok(()), |(key, _)| unknown(key, known))
    }

    /// Calls `each` for every property; `each` refuses those it does not know.
    pub(super) fn for_each(
        &self,
        mut each: impl FnMut(&str, &str) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.iter().try_for_each(|(key, value)| each(key, value))
    }
}

impl fmt::Display for Properties {
    /// Writes the list as `parse` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(key, value): (&str, &str)| format!("{key}={}", value.replace(',', ",,"));
        f.write_str(&self.iter().map(one).collect::<Vec<_>>().join(","))
    }
}

/// Lists the members of an object. Nested members have names with dots, and elements of arrays have numbers.
fn flatten(prefix: &str, value: &Value, to: &mut Vec<(String, String)>) {
    let name = |key: &str| {
        if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
    };
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(key, value)| flatten(&name(key), value, to));
        }
        Value::Array(elements) => {
            (0..).zip(elements).for_each(|(n, value)| flatten(&name(&format!("{n}")), value, to));
        }
        Value::Bool(is_on) => {
            to.push((prefix.to_owned(), if *is_on { "on" } else { "off" }.into()));
        }
        Value::String(text) => to.push((prefix.to_owned(), text.clone())),
        Value::Number(number) => to.push((prefix.to_owned(), number.to_string())),
        // An absent object: `"backing": null`.
        Value::Null => to.push((prefix.to_owned(), String::new())),
    }
}

/// Splits at single commas. A double comma stands for one in a value.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' && characters.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(character);
        }
    }
    parts
}

/// Returns the error for an unknown property.
pub(super) fn unknown<T>(key: &str, known: &str) -> Result<T, Reason> {
    Err(format!("there is no property {key}; there are {known}"))
}

/// Reads `on` or `off`, or QEMU's other words for them.
pub(crate) fn switch(key: &str, value: &str) -> Result<bool, Reason> {
    match value {
        "on" | "yes" | "true" => Ok(true),
        "off" | "no" | "false" => Ok(false),
        _ => Err(format!("{key} must be on or off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str, first: Option<&str>) -> Vec<(String, String)> {
        Properties::parse(text, first).0
    }

    #[test]
    fn objects_are_lists_too() {
        let text = r#"{"driver": "qcow2", "read-only": true, "backing": null,
            "file": {"driver": "file", "filename": "a,b"}, "size": 3, "list": [{"a": 1}]}"#;
        let mut properties = Properties::parse_either(text, Some("driver")).unwrap();
        let mut file = properties.take_group("file");
        assert_eq!(file.take("filename").as_deref(), Some("a,b"));
        assert_eq!(properties.take("read-only").as_deref(), Some("on"));
        assert_eq!(properties.take("list.0.a").as_deref(), Some("1"));
        assert_eq!(properties.take("backing").as_deref(), Some(""));
        assert!(Properties::parse_either("{\"a\"", None).is_err());
        let list = Properties::parse_either("file,node-name=n", Some("driver")).unwrap();
        assert_eq!(list, Properties::parse("driver=file,node-name=n", None));
    }

    #[test]
    fn lists_are_read() {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        assert_eq!(pairs("", Some("type")), []);
        assert_eq!(pairs("pc,a=1", Some("type")), owned(&[("type", "pc"), ("a", "1")]));
        assert_eq!(pairs("a=1=2,server", None), owned(&[("a", "1=2"), ("server", "on")]));
        assert_eq!(pairs("file=a,,b,,", None), owned(&[("file", "a,b,")]));
        assert_eq!(pairs("a,,,b", None), owned(&[("a,", "on"), ("b", "on")]));
    }
}
