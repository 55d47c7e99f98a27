//! The module's four extension points in the bootstrap.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{Bootstrap, at};

const VALIDATORS: &str = "/dynamic_resources/ads_config/config_validators";
const EXTENSIONS: &str = "/bootstrap_extensions";
const STRUCT: &str = "type.googleapis.com/google.protobuf.Struct";

/// Where Envoy calls the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionPoint {
    /// The HTTP filter before the router.
    Retry,
    /// The network filter on `connect_originate`.
    Fence,
    /// The bootstrap extension.
    Status,
    /// The config validators, one for endpoints and one for clusters, configured alike.
    Watch,
}

// === impl ExtensionPoint ===

impl ExtensionPoint {
    /// All of them.
    pub const ALL: [ExtensionPoint; 4] = [Self::Retry, Self::Fence, Self::Status, Self::Watch];

    /// The name that the module knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Fence => "fence",
            Self::Status => "status",
            Self::Watch => "watch",
        }
    }

    /// Field names of the name and of the configuration in Envoy's message.
    fn fields(self) -> (&'static str, &'static str) {
        match self {
            Self::Retry | Self::Fence => ("filter_name", "filter_config"),
            Self::Status | Self::Watch => ("extension_name", "extension_config"),
        }
    }
}

// === impl Bootstrap ===

impl Bootstrap {
    /// JSON pointers of the entries of an extension point; empty if it was taken away.
    pub fn extension(&self, point: ExtensionPoint) -> Vec<String> {
        let single = |place: Result<String>| place.into_iter().collect();
        match point {
            ExtensionPoint::Retry => {
                let filters = self.hcm().map(|hcm| format!("{hcm}/typed_config/http_filters"));
                single(filters.and_then(|filters| self.named(&filters, "stale_guard.retry")))
            }
            ExtensionPoint::Fence => single(self.tunnel_filter("stale_guard.fence")),
            ExtensionPoint::Status => single(self.named(EXTENSIONS, "stale_guard.status")),
            ExtensionPoint::Watch => {
                let validators = self.value.pointer(VALIDATORS).and_then(Value::as_array);
                let count = validators.map_or(0, Vec::len);
                (0..count).map(|index| format!("{VALIDATORS}/{index}")).collect()
            }
        }
    }

    /// Sets the configuration of an extension point, as a `google.protobuf.Struct`.
    ///
    /// # Errors
    /// If the bootstrap does not have it.
    pub fn with_config(self, point: ExtensionPoint, config: &Value) -> Result<Self> {
        self.with_any_config(point, &json!({ "@type": STRUCT, "value": config }))
    }

    /// Sets the configuration of an extension point to any message (an object with `@type`), such as a
    /// `google.protobuf.StringValue` that holds no JSON.
    ///
    /// # Errors
    /// If the bootstrap does not have it.
    pub fn with_any_config(self, point: ExtensionPoint, config: &Value) -> Result<Self> {
        let (_, field) = point.fields();
        self.with_extension_field(point, field, config)
    }

    /// Changes some fields of the configuration, and keeps the others.
    ///
    /// # Errors
    /// If the bootstrap does not have the extension point, or its configuration is no object.
    pub fn with_config_fields(self, point: ExtensionPoint, fields: &Value) -> Result<Self> {
        let (_, field) = point.fields();
        let places = self.extension(point);
        let current =
            places.first().and_then(|place| self.value.pointer(&format!("{place}/typed_config/{field}/value")));
        match (current, fields) {
            (Some(Value::Object(current)), Value::Object(fields)) => {
                let mut merged = current.clone();
                merged.extend(fields.clone());
                self.with_config(point, &Value::Object(merged))
            }
            _ => bail!("no object to change in the configuration of {point:?}"),
        }
    }

    /// Asks the module for another extension name than its own, to see it refused.
    ///
    /// # Errors
    /// If the bootstrap does not have it.
    pub fn with_extension_name(self, point: ExtensionPoint, name: &str) -> Result<Self> {
        let (field, _) = point.fields();
        self.with_extension_field(point, field, &json!(name))
    }

    /// Without all that Stale Guard adds; `max_connect_attempts` stays.
    ///
    /// # Errors
    /// If a part is missing already.
    pub fn without_module(self) -> Result<Self> {
        self.without_retry_filter()?.without_fence()?.without_status()?.without_config_validators()
    }

    /// Without the HTTP filter.
    ///
    /// # Errors
    /// If it is missing already.
    pub fn without_retry_filter(self) -> Result<Self> {
        self.without(ExtensionPoint::Retry)
    }

    /// Without the network filter, and without what puts its generation into the pool key.
    ///
    /// # Errors
    /// If either is missing already.
    pub fn without_fence(self) -> Result<Self> {
        let bootstrap = self.without(ExtensionPoint::Fence)?;
        let key = bootstrap.tunnel_filter("envoy.filters.network.set_filter_state")?;
        bootstrap.remove(&key)
    }

    /// Without the bootstrap extension.
    ///
    /// # Errors
    /// If it is missing already.
    pub fn without_status(self) -> Result<Self> {
        self.without(ExtensionPoint::Status)
    }

    /// Without the config validators, as Envoy 1.38 and 1.39 need it.
    ///
    /// # Errors
    /// If they are missing already.
    pub fn without_config_validators(self) -> Result<Self> {
        self.remove(&format!("{}/config_validators", at::ADS))
    }

    fn without(self, point: ExtensionPoint) -> Result<Self> {
        match self.extension(point).first() {
            Some(place) => self.remove(place),
            None => bail!("{point:?} is not in the bootstrap"),
        }
    }

    fn with_extension_field(self, point: ExtensionPoint, field: &str, value: &Value) -> Result<Self> {
        let places = self.extension(point);
        if places.is_empty() {
            bail!("{point:?} is not in the bootstrap");
        }
        places
            .iter()
            .try_fold(self, |bootstrap, place| bootstrap.patch(&format!("{place}/typed_config/{field}"), value.clone()))
    }
}
