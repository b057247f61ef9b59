//! What happens to a machine, as bytes: steps of a number that says what, one that says to whom or how long, and a message. Any bytes are a
//! script: what is cut or no message is left out, as a connection would refuse it.

use nanomc::cluster::types::Millis;
use nanomc::cluster::wire::Message;
use nanomc::rpc::packet::Cursor;

/// Steps of one script.
const MOST: usize = 256;
/// How much time may pass at once.
const PASSES_MS: [Millis; 8] = [1, 40, 150, 400, 1_500, 6_000, 15_000, 4_000_000];

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub what: u8,
    pub about: u8,
    pub message: Option<Message>,
    /// Bytes of it in the script.
    pub bytes: usize,
}

impl Step {
    /// Who is meant, of so many.
    pub fn who(&self, many: u8) -> u64 {
        u64::from(self.about % many)
    }

    /// How much time passes.
    pub fn passes_ms(&self) -> Millis {
        PASSES_MS[usize::from(self.about) % PASSES_MS.len()]
    }
}

/// Adds a step.
pub fn write(to: &mut Vec<u8>, what: u8, about: u8, message: Option<&Message>) {
    let mut body = Vec::new();
    let mut kind = 0;
    if let Some(message) = message {
        message.put_body(&mut body);
        kind = u8::try_from(message.number()).expect("kinds are small");
    }
    let length = u16::try_from(body.len()).expect("a message of an example is short").to_le_bytes();
    to.extend([what, about, kind, length[0], length[1]]);
    to.extend(body);
}

/// Reads them.
pub fn read(mut data: &[u8]) -> impl Iterator<Item = Step> {
    let next = move || {
        let (&[what, about, kind, low, high], rest) = data.split_first_chunk::<5>()?;
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (body, rest) = rest.split_at(length);
        data = rest;
        let mut from = Cursor::new(body);
        let message = Message::get_body(kind.into(), &mut from).ok().filter(|_| from.end().is_ok());
        Some(Step { what, about, message, bytes: 5 + length })
    };
    std::iter::from_fn(next).take(MOST)
}
