//! Stale Guard: an Envoy dynamic module that fences the pooled connections of removed endpoints and
//! retries what is safe to retry.

pub mod config;
pub mod retry;
