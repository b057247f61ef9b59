//! JSON as far as the CLI writes it, objects and arrays of strings, numbers and booleans; and a strict reader for what a master says, which
//! may be anybody: depth and number of values are limited.

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

/// `text` in quotes.
pub fn quote(text: &str) -> String {
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

/// How deep values may lie in each other.
const MAX_DEPTH: u32 = 16;
/// Most values of a text.
const MAX_VALUES: u32 = 1 << 20;

/// A value that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// null.
    Null,
    /// true or false.
    Bool(bool),
    /// A number, as it was written.
    Number(String),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// Named values.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// The value under a name; `None` in what is no object, too.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let Value::Object(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// A whole number under a name.
    pub fn whole(&self, name: &str) -> Option<u64> {
        let Some(Value::Number(text)) = self.field(name) else { return None };
        text.parse().ok()
    }

    /// A text under a name.
    pub fn text(&self, name: &str) -> Option<&str> {
        let Some(Value::Text(text)) = self.field(name) else { return None };
        Some(text)
    }
}

/// The value that `text` is; else where it stops being one.
pub fn read(text: &str) -> Result<Value, String> {
    let mut reader = Reader { text, at: 0, values: 0 };
    let value = reader.value(0).and_then(|value| {
        reader.space();
        if reader.at == text.len() { Ok(value) } else { Err("something follows the value") }
    });
    value.map_err(|why| format!("{why} at byte {}", reader.at))
}

/// `-12.5e+3`: a whole part without leading zeros, digits behind a point, an exponent.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (text, None),
    };
    let number = number.strip_prefix('-').unwrap_or(number);
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(whole, rest)| (whole, Some(rest)));
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    values: u32,
}

type Read<T> = Result<T, &'static str>;

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        self.at += self.rest().bytes().take_while(|byte| b" \t\r\n".contains(byte)).count();
    }

    fn take(&mut self, token: &str) -> bool {
        self.space();
        let there = self.rest().starts_with(token);
        self.at += if there { token.len() } else { 0 };
        there
    }

    fn value(&mut self, depth: u32) -> Read<Value> {
        self.values += 1;
        if depth > MAX_DEPTH || self.values > MAX_VALUES {
            return Err("too much");
        }
        if self.take("{") {
            return Ok(Value::Object(self.items("}", |reader| {
                reader.space();
                let name = reader.quoted()?;
                if !reader.take(":") {
                    return Err("a colon is missing");
                }
                Ok((name, reader.value(depth + 1)?))
            })?));
        }
        if self.take("[") {
            return Ok(Value::List(self.items("]", |reader| reader.value(depth + 1))?));
        }
        if self.rest().starts_with('"') {
            return Ok(Value::Text(self.quoted()?));
        }
        for (token, value) in [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))] {
            if self.take(token) {
                return Ok(value);
            }
        }
        let number: String = self.rest().chars().take_while(|c| "+-.eE0123456789".contains(*c)).collect();
        if !is_number(&number) {
            return Err("no value");
        }
        self.at += number.len();
        Ok(Value::Number(number))
    }

    fn items<T>(&mut self, end: &str, mut item: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let mut items = Vec::new();
        while !self.take(end) {
            if !items.is_empty() && !self.take(",") {
                return Err("a comma is missing");
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn quoted(&mut self) -> Read<String> {
        if !self.take("\"") {
            return Err("a text is missing");
        }
        let mut text = String::new();
        loop {
            let c = self.next()?;
            match c {
                '"' => return Ok(text),
                '\\' => {
                    let escape = self.next()?;
                    text.push(match escape {
                        '"' | '\\' | '/' => escape,
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        'u' => self.unicode()?,
                        _ => return Err("no escape"),
                    });
                }
                c if c < ' ' => return Err("a control character"),
                c => text.push(c),
            }
        }
    }

    fn next(&mut self) -> Read<char> {
        let c = self.rest().chars().next().ok_or("a text without end")?;
        self.at += c.len_utf8();
        Ok(c)
    }

    fn four_digits(&mut self) -> Read<u32> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or("no escape")?;
        self.at += 4;
        Ok(code)
    }

    fn unicode(&mut self) -> Read<char> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or("half a character");
        }
        // The other half of what does not fit into four digits.
        if !self.rest().starts_with("\\u") {
            return Err("half a character");
        }
        self.at += 2;
        let low = self.four_digits()?.checked_sub(0xdc00).filter(|low| *low < 0x400).ok_or("half a character")?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + low).ok_or("half a character")
    }
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
    #[test]
    fn what_is_json_is_read_and_nothing_else() {
        let value =
            read(r#" {"a":[1,-2.5e3,true,null],"b":{"c":"x\n\u00e9\ud83d\ude00é"}, "n":18446744073709551615} "#);
        let value = value.expect("JSON");
        let list = ["1", "-2.5e3"].map(|text| Value::Number(text.into()));
        assert_eq!(value.field("a"), Some(&Value::List([&list[..], &[Value::Bool(true), Value::Null]].concat())));
        assert_eq!(value.field("b").and_then(|b| b.text("c")), Some("x\né😀é"));
        assert_eq!((value.whole("n"), value.whole("a"), value.text("x")), (Some(u64::MAX), None, None));
        for wrong in [
            "",
            " ",
            "{",
            "[1",
            "[1 2]",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "\"x",
            "\"\\x\"",
            "\"\n\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "+1",
            "1e",
            "--",
            "nul",
            "1 1",
            "<html>",
            "NaN",
            "inf",
            "[,1]",
            "01",
            "1.",
            ".5",
            "-",
            "1e+",
            "\"\\u+123\"",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn neither_depth_nor_number_of_values_is_without_limit() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nested(17)).is_ok() && read(&nested(18)).is_err() && read(&nested(1 << 20)).is_err());
        let many = |values: usize| format!("[{}]", vec!["1"; values].join(","));
        assert!(read(&many(MAX_VALUES as usize - 1)).is_ok() && read(&many(MAX_VALUES as usize)).is_err());
    }
}
