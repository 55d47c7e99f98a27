//! Rust binding for Envoy's dynamic modules ABI.
