//! EDS and CDS resources, as Envoy would hand them over.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stale_guard::watch::{decode_assignment, decode_cluster};

fuzz_target!(|data: &[u8]| {
    if let Ok(assignment) = decode_assignment(data) {
        // An endpoint takes at least two bytes and has at most its metadata's address and those of its own.
        assert!(assignment.endpoints.len() <= data.len(), "more endpoints than bytes");
        assert_eq!(decode_assignment(data), Ok(assignment), "the same bytes, another reading");
    }
    let _ = decode_cluster(data);
});
