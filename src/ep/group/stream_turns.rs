//! Which streams the buffer sets are on: how many steps of a rank can wait at the same time, and need room together.

/// The streams of a rank's sets, as far as calls have shown them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// By set.
    of: Vec<Option<usize>>,
    /// The set of the last call.
    last: usize,
    /// What the calls of that set found, since they came to it.
    found: usize,
}

impl Streams {
    /// Notes a call of `set` on `stream`. Returns how many streams calls of the sets take turns on; 1 while that cannot be told. A set
    /// that comes back to its stream, after another set on another stream, takes turns: a program that only moves to another stream
    /// does not come back.
    pub(super) fn in_turn(&mut self, set: usize, stream: usize) -> usize {
        if self.of.len() <= set {
            self.of.resize(set + 1, None);
        }
        let again = self.of[set] == Some(stream);
        let other = self.of[self.last].is_some_and(|theirs| theirs != stream);
        self.of[set] = Some(stream);
        if self.last != set || !again {
            self.last = set;
            self.found = if again && other { self.streams() } else { 1 };
        }
        self.found
    }

    fn streams(&self) -> usize {
        (0..self.of.len()).filter(|i| self.of[*i].is_some() && !self.of[..*i].contains(&self.of[*i])).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(calls: &[(usize, usize)]) -> usize {
        let mut streams = Streams::default();
        calls.iter().fold(0, |most, (set, stream)| streams.in_turn(*set, *stream).max(most))
    }

    #[test]
    fn sets_on_several_streams_are_seen_and_a_change_of_stream_is_not_taken_for_it() {
        assert_eq!(most(&[(0, 7), (0, 7), (1, 7), (1, 7), (0, 7), (2, 7)]), 1);
        assert_eq!(most(&[(0, 7), (1, 7), (2, 7), (0, 8), (0, 8), (1, 8), (1, 8), (2, 8), (0, 8), (1, 8)]), 1);
        assert_eq!(most(&[(0, 7), (1, 8), (0, 7)]), 2);
        assert_eq!(most(&[(0, 7), (0, 7), (1, 8), (1, 8), (0, 7)]), 2);
        assert_eq!(most(&[(0, 7), (1, 8), (2, 7), (3, 8), (0, 7), (1, 8)]), 2);
        assert_eq!(most(&[(0, 7), (1, 8), (2, 9), (0, 7)]), 3);
        // Step by step: the second call of the set that came back is told as well.
        let mut streams = Streams::default();
        let found: Vec<_> =
            [(0, 7), (0, 7), (1, 8), (1, 8), (0, 7), (0, 7)].map(|(set, stream)| streams.in_turn(set, stream)).to_vec();
        assert_eq!(found, [1, 1, 1, 1, 2, 2]);
        assert_eq!(most(&[(0, 7), (1, 8), (0, 5), (1, 6), (0, 5), (1, 6)]), 2);
    }
}
