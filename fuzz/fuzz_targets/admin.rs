//! The text of `/clusters`, in chunks that end anywhere.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stale_guard::watch::admin::{Clusters, Parser, Unreadable};

fn read(chunks: &[&[u8]]) -> Result<Clusters, Unreadable> {
    let mut parser = Parser::new();
    for chunk in chunks {
        parser.feed(chunk);
    }
    parser.finish()
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, text)) = data.split_first() else { return };
    let whole = read(&[text]);
    let (head, tail) = text.split_at(text.len() * usize::from(*cut) / 256);
    assert_eq!(read(&[head, tail]), whole, "where a chunk ends must not matter");
});
