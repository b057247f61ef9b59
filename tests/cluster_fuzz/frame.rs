//! Bytes as they may come from anybody: a frame, or none.

use super::counted;
use nanomc::base::error::Result;
use nanomc::cluster::wire::{Frame, HEAD, Head};

/// Reads the first frame of some bytes. `None` if they end before it does.
pub type Decode = fn(&[u8]) -> Option<Result<Frame>>;

/// As a connection does.
pub fn decode(bytes: &[u8]) -> Option<Result<Frame>> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let head = match Head::decode(head) {
        Ok(head) => head,
        Err(error) => return Some(Err(error)),
    };
    Some(Frame::decode(&head, rest.get(..head.len as usize)?))
}

/// What is no frame is refused; what is one is encoded to the bytes that it came from. Memory is taken for what there is, not for what is said.
pub fn body(data: &[u8]) {
    check(data, decode);
}

/// The same with another decoder.
pub fn check(data: &[u8], decode: Decode) {
    let mut decoded = None;
    let taken = counted::most(|| decoded = decode(data));
    // An entry of a list is a byte at least, and less than 128 in memory.
    let limit = 4096 + 128 * data.len();
    assert!(taken <= limit, "{taken} bytes are taken for {}", data.len());
    if let Some(Ok(frame)) = decoded {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).expect("what was decoded can be encoded");
        assert!(data.starts_with(&bytes), "{frame:?} is encoded otherwise than it came");
        assert_eq!(decode(&bytes), Some(Ok(frame)));
    }
}
