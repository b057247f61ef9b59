//! Which streams the buffer sets are on: whether steps of two sets can wait at the same time, and need room for both.

/// The streams of a rank's sets, as far as calls have shown them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// By set.
    of: Vec<Option<usize>>,
    /// The set of the last call.
    last: usize,
}

impl Streams {
    /// Notes a call of `set` on `stream`. True if calls of two sets on two streams take turns: a program that moves from one
    /// stream to another does not come back.
    pub(super) fn take_turns(&mut self, set: usize, stream: usize) -> bool {
        if self.of.len() <= set {
            self.of.resize(set + 1, None);
        }
        let again = self.of[set] == Some(stream);
        let other = self.last != set && self.of[self.last].is_some_and(|theirs| theirs != stream);
        self.of[set] = Some(stream);
        self.last = set;
        again && other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(calls: &[(usize, usize)]) -> bool {
        let mut streams = Streams::default();
        calls.iter().fold(false, |any, (set, stream)| streams.take_turns(*set, *stream) || any)
    }

    #[test]
    fn sets_on_two_streams_are_seen_and_a_change_of_stream_is_not_taken_for_it() {
        assert!(!any(&[(0, 7), (0, 7), (1, 7), (1, 7), (0, 7), (2, 7)]));
        assert!(!any(&[(0, 7), (1, 7), (2, 7), (0, 8), (0, 8), (1, 8), (1, 8), (2, 8), (0, 8), (1, 8)]));
        assert!(any(&[(0, 7), (1, 8), (0, 7)]));
        assert!(any(&[(0, 7), (0, 7), (1, 8), (1, 8), (0, 7)]));
        assert!(any(&[(0, 7), (1, 8), (2, 7), (3, 8), (0, 7), (1, 8)]));
    }
}
