//! What a fence leaves behind is closed: on real Envoy, beside stock and beside the module with closing
//! switched off.

mod flaps;
mod kinds;
mod stress;
mod support;
