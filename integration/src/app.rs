//! The application in a pod: HTTP/1.1 and h2c (prior knowledge) on one port, plain text.
//!
//! It records every [`Execution`] once the request was read to its end and before it answers, so
//! that the log tells what a server did, whatever became of the answer. What it does with a request
//! follows from its [`Script`], else from the query of the request:
//!
//! | query | effect |
//! |---|---|
//! | `delay_ms=N` | answers N milliseconds later |
//! | `status=N` | answers N |
//! | `bytes=N` | a body of N bytes instead of the pod's name |
//! | `hang=headers` | reads the request and never answers |
//! | `hang=body` | answers 200 and keeps the body open until [`App::release`] |
//!
//! An `Upgrade` request (RFC 9110, section 7.8) is answered by 101, an extended CONNECT (RFC 8441) by
//! 200, and the bytes are echoed. A
//! request with `content-type: application/grpc` gets its own body back and `grpc-status: 0`.

mod answer;
mod gate;
mod http1;
mod http2;
mod record;
mod script;
mod server;
mod shared;

pub use record::{Execution, hash_of};
pub use script::{Behaviour, Script};
pub use server::App;
pub use shared::AppSpec;
