//! Names of machines and servers.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::BadDefinition;

/// The most characters in a name. A name is part of the paths of sockets, which are short.
pub(super) const NAME_MAX: usize = 40;

/// The name of a part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = BadDefinition;

    fn try_from(text: String) -> Result<Name, BadDefinition> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins && text.len() <= NAME_MAX && text.bytes().all(is_allowed) {
            Ok(Name(text))
        } else {
            Err(BadDefinition::Name(text))
        }
    }
}

impl FromStr for Name {
    type Err = BadDefinition;

    fn from_str(text: &str) -> Result<Name, BadDefinition> {
        Name::try_from(text.to_owned())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
