//! JSON as far as the admin endpoints say any: written, never read.

use std::fmt::Write as _;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// true or false.
    Bool(bool),
    /// A whole number.
    Number(u64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// Named values.
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// The text of it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text.push('\n');
        text
    }

    fn write(&self, to: &mut String) {
        match self {
            Json::Bool(value) => to.push_str(if *value { "true" } else { "false" }),
            Json::Number(value) => _ = write!(to, "{value}"),
            Json::Text(text) => quote(text, to),
            Json::List(list) => {
                to.push('[');
                for (at, item) in list.iter().enumerate() {
                    to.push_str(if at > 0 { "," } else { "" });
                    item.write(to);
                }
                to.push(']');
            }
            Json::Object(fields) => {
                to.push('{');
                for (at, (name, value)) in fields.iter().enumerate() {
                    to.push_str(if at > 0 { "," } else { "" });
                    quote(name, to);
                    to.push(':');
                    value.write(to);
                }
                to.push('}');
            }
        }
    }
}

fn quote(text: &str, to: &mut String) {
    to.push('"');
    for c in text.chars() {
        match c {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            c if c.is_control() => _ = write!(to, "\\u{:04x}", c as u32),
            c => to.push(c),
        }
    }
    to.push('"');
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Json::Bool(value)
    }
}

impl From<u64> for Json {
    fn from(value: u64) -> Self {
        Json::Number(value)
    }
}

impl From<usize> for Json {
    fn from(value: usize) -> Self {
        Json::Number(value as u64)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Json::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Json::Text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_a_name_the_text_stays_json() {
        let value =
            Json::Object(vec![("a", "x\"\\\n\u{1}ü".into()), ("b", Json::List(vec![7u64.into(), true.into()]))]);
        assert_eq!(value.to_text(), "{\"a\":\"x\\\"\\\\\\u000a\\u0001ü\",\"b\":[7,true]}\n");
    }
}
