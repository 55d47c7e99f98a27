//! The boundaries of HTTP/2 frames in a stream of bytes.

/// Length of the client connection preface (RFC 9113, section 3.4).
const PREFACE_LENGTH: usize = 24;

/// Follows the frame boundaries of one direction of HTTP/2 (RFC 9113, section 4.1), enough to tell
/// that a HEADERS frame begins. The frames themselves are for the library.
#[derive(Debug)]
pub(crate) struct Frames {
    skip: usize,
    head: Vec<u8>,
}

// === impl Frames ===

impl Frames {
    /// What a client sends: the preface comes first.
    pub(crate) fn of_client() -> Self {
        Self { skip: PREFACE_LENGTH, head: Vec::new() }
    }

    /// What a server sends: frames from the beginning.
    pub(crate) fn of_server() -> Self {
        Self { skip: 0, head: Vec::new() }
    }

    /// Whether a frame has just ended, and the next one has not begun.
    pub(crate) fn at_boundary(&self) -> bool {
        self.skip == 0 && self.head.is_empty()
    }

    /// Takes the next bytes; true if a HEADERS frame begins in them.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> bool {
        const HEAD_LENGTH: usize = 9;
        const HEADERS: u8 = 0x1;
        let mut found = false;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let missing = (HEAD_LENGTH - self.head.len()).min(bytes.len());
            let (part, rest) = bytes.split_at(missing);
            self.head.extend_from_slice(part);
            bytes = rest;
            if let [a, b, c, kind, ..] = *self.head.as_slice()
                && self.head.len() == HEAD_LENGTH
            {
                found |= kind == HEADERS;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                self.head.clear();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_boundaries_are_followed_however_the_bytes_are_cut() {
        let mut wire = vec![b'P'; PREFACE_LENGTH];
        // SETTINGS with a payload of six bytes that look like a HEADERS frame's head.
        wire.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
        let quiet = wire.len();
        wire.extend([0, 0, 1, 1, 5, 0, 0, 0, 1, 0x82]);
        for cut in 1..wire.len() {
            let mut frames = Frames::of_client();
            let hits: Vec<_> = wire.chunks(cut).map(|chunk| frames.feed(chunk)).collect();
            let first = hits.iter().position(|hit| *hit).expect("HEADERS is found");
            assert!((first + 1) * cut > quiet + 8, "cut at {cut}: found too early");
        }
    }
}
