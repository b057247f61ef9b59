//! JSON as far as the CLI writes it: objects and arrays of strings, numbers and booleans.

/// An object under construction; fields keep their order.
#[derive(Debug, Default)]
pub struct Object(String);

impl Object {
    /// An object without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field whose value is JSON already.
    #[must_use]
    pub fn raw(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(&format!("{}:{value}", quote(name)));
        self
    }

    /// Adds a string.
    #[must_use]
    pub fn text(self, name: &str, value: &str) -> Self {
        self.raw(name, &quote(value))
    }

    /// Adds a number; JSON has none that is not finite.
    #[must_use]
    pub fn number(self, name: &str, value: f64) -> Self {
        let text = if value.is_finite() { format!("{value}") } else { "null".to_owned() };
        self.raw(name, &text)
    }

    /// Adds a boolean.
    #[must_use]
    pub fn flag(self, name: &str, value: bool) -> Self {
        self.raw(name, if value { "true" } else { "false" })
    }

    /// The text.
    pub fn finish(self) -> String {
        format!("{{{}}}", self.0)
    }
}

/// An array of values that are JSON already.
pub fn array(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(","))
}

fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_fields_keep_their_order() {
        let object = Object::new().text("b", "x\"\\\n\u{1}é").number("a", 0.5).number("n", f64::NAN).flag("t", true);
        assert_eq!(object.finish(), r#"{"b":"x\"\\\n\u0001é","a":0.5,"n":null,"t":true}"#);
        assert_eq!(array(["1".to_owned(), "2".to_owned()]), "[1,2]");
        assert_eq!(Object::new().finish(), "{}");
    }
}
