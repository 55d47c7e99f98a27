use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyBuffer, EnvoyCounterId,
    abi::{envoy_dynamic_module_type_attribute_id as Attribute, envoy_dynamic_module_type_metadata_source as Source},
    extra::MetricResult,
};

use crate::{
    endpoints::{End, ResetEvidence},
    metadata,
};

use super::{
    super::{budgets, decide::Reason, headers::ATTEMPT_COUNT, stream::FLAG, testing::Request},
    *,
};

/// Envoy while a configuration loads: the counters' names, by id.
#[derive(Default)]
struct Loading {
    names: Vec<String>,
}

impl EnvoyHttpFilterConfig for Loading {
    fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
        self.names.push(name.to_owned());
        Ok(EnvoyCounterId(self.names.len() - 1))
    }
}

/// Every counter's name, by id.
fn counters() -> Vec<String> {
    let mut loading = Loading::default();
    let _ = Metrics::define(&mut loading);
    loading.names
}

/// Envoy during one stream.
#[derive(Default)]
struct Fake {
    request: Vec<(String, Vec<u8>)>,
    status: Option<Vec<u8>>,
    route: Option<Arc<HttpPerRouteConfig>>,
    numbers: HashMap<u32, i64>,
    texts: HashMap<u32, &'static str>,
    host: Option<&'static str>,
    body_piece: usize,
    metadata: BTreeMap<String, String>,
    flags: Vec<String>,
    counters: RefCell<BTreeMap<usize, u64>>,
    probes: RefCell<Vec<u32>>,
}

impl Fake {
    fn new(request: Request) -> Self {
        let pseudo = [(":method", request.method), (":authority", request.authority), (":path", request.path)];
        let pseudo = pseudo.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Self { request: pseudo.chain(request.headers).collect(), ..Self::default() }
    }

    fn ended(mut self, attempts: i64, code: i64, flags: i64, details: &'static str) -> Self {
        self.numbers = HashMap::from([
            (Attribute::UpstreamRequestAttemptCount as u32, attempts),
            (Attribute::ResponseCode as u32, code),
            (Attribute::ResponseFlags as u32, flags),
        ]);
        self.texts = HashMap::from([
            (Attribute::ResponseCodeDetails as u32, details),
            (Attribute::UpstreamAddress as u32, "10.244.0.7:8080"),
        ]);
        self
    }

    fn header(&self, name: &str) -> Option<String> {
        self.get_request_header_value(name).map(|value| String::from_utf8_lossy(value.as_slice()).into_owned())
    }

    fn count(&self, name: &str) -> u64 {
        let id = counters().iter().position(|known| known == name);
        let id = id.unwrap_or_else(|| panic!("no such counter: {name}"));
        self.counters.borrow().get(&id).copied().unwrap_or(0)
    }

    fn meta(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }
}

impl EnvoyHttpFilter for Fake {
    fn get_request_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.get_request_header_values(key).first().copied()
    }

    fn get_request_header_values(&self, key: &str) -> Vec<EnvoyBuffer<'_>> {
        self.request
            .iter()
            .filter(|(name, _)| name == key)
            .map(|(_, value)| EnvoyBuffer::new(value.as_slice()))
            .collect()
    }

    fn set_request_header(&mut self, key: &str, value: &[u8]) -> bool {
        self.request.retain(|(name, _)| name != key);
        self.request.push((key.to_owned(), value.to_vec()));
        true
    }

    fn get_response_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.status.as_deref().filter(|_| key == ":status").map(EnvoyBuffer::new)
    }

    fn set_response_header(&mut self, key: &str, value: &[u8]) -> bool {
        assert_eq!(key, ":status");
        self.status = Some(value.to_vec());
        true
    }

    fn get_most_specific_route_config(&self) -> Option<Arc<HttpPerRouteConfig>> {
        self.route.clone()
    }

    fn get_attribute_int(&self, id: Attribute) -> Option<i64> {
        self.probes.borrow_mut().push(id as u32);
        self.numbers.get(&(id as u32)).copied()
    }

    fn get_attribute_string(&self, id: Attribute) -> Option<EnvoyBuffer<'_>> {
        self.probes.borrow_mut().push(id as u32);
        self.texts.get(&(id as u32)).copied().map(|text| EnvoyBuffer::new(text.as_bytes()))
    }

    fn get_metadata_string(&self, _source: Source, _namespace: &str, _key: &str) -> Option<EnvoyBuffer<'_>> {
        self.host.map(|text| EnvoyBuffer::new(text.as_bytes()))
    }

    fn get_received_request_body_size(&mut self) -> usize {
        self.body_piece
    }

    fn get_buffer_limit(&self) -> u64 {
        1_000
    }

    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {
        assert_eq!(namespace, metadata::NAMESPACE);
        self.metadata.insert(key.to_owned(), value.to_owned());
    }

    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {
        assert_eq!(namespace, metadata::NAMESPACE);
        self.metadata.insert(key.to_owned(), value.to_string());
    }

    fn add_custom_flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        *self.counters.borrow_mut().entry(id.0).or_default() += value;
        Ok(())
    }
}

fn config(json: &str) -> RetryConfig {
    RetryConfig::new(json.as_bytes(), &mut Loading::default(), Endpoints::new(64), true).expect("a valid policy")
}

/// A tunnel that breaks now, on the only worker.
fn breaks(config: &RetryConfig, ip: &str, end: End) {
    let now = Instant::now();
    let evidence = ResetEvidence { end, idle: None, waited: Some(Duration::from_millis(1_500)), answering: false };
    let tunnel = config.shared.endpoints.open(ip.parse().expect("an address"), None, now);
    let _ = tunnel.ended(&evidence, 0, now);
}

/// One stream from its headers to its end, with an optional body piece.
fn run(config: &RetryConfig, envoy: Fake) -> Fake {
    run_while(config, envoy, || {})
}

/// The same, with something that happens after its headers.
fn run_while(config: &RetryConfig, mut envoy: Fake, event: impl FnOnce()) -> Fake {
    let mut filter = config.new_http_filter(&mut envoy);
    assert!(matches!(filter.on_request_headers(&mut envoy, false), HeadersStatus::Continue));
    if envoy.body_piece > 0 {
        assert!(matches!(filter.on_request_body(&mut envoy, true), BodyStatus::Continue));
    }
    event();
    filter.on_stream_complete(&mut envoy);
    envoy
}

const UC: i64 = 1 << 6;
const BROKEN: &str = "upstream_reset_before_response_started{connection_termination}";
const ON: &str = "x-envoy-retry-on";

#[test]
fn an_eligible_request_gets_the_headers_and_its_account() {
    let config = config("{}");
    let fake = Fake::new(Request::new("GET", "/")).ended(2, 200, 0, "via_upstream");
    let envoy = run_while(&config, fake, || breaks(&config, "10.244.0.8", End::Broken));
    assert_eq!(envoy.header(ON).as_deref(), Some("reset,reset-before-request,connect-failure,refused-stream"));
    assert_eq!(
        (envoy.meta("retry_decision"), envoy.meta("retry_reason"), envoy.meta("retry_outcome"), envoy.meta("attempts")),
        (Some("retry"), Some("method_eligible"), Some("succeeded"), Some("2"))
    );
    for name in [
        "retry_requests",
        "retry_granted",
        "retry_retries",
        "retry_decision_method_eligible",
        "retry_outcome_succeeded",
    ] {
        assert_eq!(envoy.count(name), 1, "{name}");
    }
    assert!(envoy.flags.is_empty(), "a request that was answered bears no flag");
    assert_eq!((envoy.meta("reset_class"), envoy.meta("reset_endpoint")), (Some("broken"), Some("10.244.0.8")));
    assert_eq!(
        (envoy.count("retry_reset_broken"), envoy.count("retry_cured_broken")),
        (1, 1),
        "a cured reset is explained"
    );
}

#[test]
fn observing_counts_and_annotates_the_same_and_changes_nothing() {
    for method in ["GET", "POST", "CONNECT"] {
        let end = |mode| {
            let fake = Fake::new(Request::new(method, "/")).ended(1, 200, 0, "via_upstream");
            run(&config(&format!(r#"{{"mode":"{mode}"}}"#)), fake)
        };
        let (enforced, observed) = (end("enforce"), end("observe"));
        assert_eq!(enforced.metadata, observed.metadata, "{method}");
        assert_eq!(enforced.counters, observed.counters, "{method}");
        assert_eq!(observed.header(ON), None, "{method}");
    }
    let broken = run(&config(r#"{"mode":"observe"}"#), Fake::new(Request::new("GET", "/")).ended(1, 503, UC, BROKEN));
    assert_eq!((broken.count("retry_failed_by_reset"), broken.flags.len()), (1, 0), "nothing was done, so no flag");
}

#[test]
fn switched_off_it_does_nothing() {
    let envoy = run(&config(r#"{"mode":"off"}"#), Fake::new(Request::new("GET", "/")).ended(1, 503, UC, BROKEN));
    assert_eq!((envoy.header(ON), envoy.metadata.len(), envoy.counters.borrow().len()), (None, 0, 0));
}

#[test]
fn a_route_s_configuration_replaces_the_filter_s() {
    let mut fake = Fake::new(Request::new("GET", "/")).ended(1, 200, 0, "");
    fake.route = Some(Arc::from(new_per_route(br#"{"mode":"off"}"#).expect("a valid policy")));
    let envoy = run(&config("{}"), fake);
    assert_eq!(envoy.header(ON), None, "the route says off");
    let mut fake = Fake::new(Request::new("GET", "/")).ended(1, 200, 0, "");
    fake.route = Some(Arc::from(new_per_route(br#"{"on":["5xx"]}"#).expect("a valid policy")));
    assert_eq!(run(&config(r#"{"mode":"off"}"#), fake).header(ON).as_deref(), Some("5xx"));
    assert!(new_per_route(br#"{"colour":1}"#).is_err());
}

#[test]
fn a_request_that_failed_by_a_reset_all_the_same_is_flagged_and_explained() {
    let config = config("{}");
    let mut fake = Fake::new(Request::new("GET", "/")).ended(2, 503, UC, BROKEN);
    fake.host = Some("10.244.0.9:15008");
    let envoy = run_while(&config, fake, || {
        breaks(&config, "10.244.0.9", End::Refused(None));
        breaks(&config, "10.244.0.8", End::Broken);
    });
    assert_eq!(envoy.flags, [FLAG]);
    assert_eq!((envoy.meta("reset_class"), envoy.meta("waited_ms")), (Some("tunnel_refused"), Some("1500")));
    assert_eq!((envoy.count("retry_failed_by_reset"), envoy.count("retry_outcome_exhausted")), (1, 1));
    assert_eq!((envoy.count("retry_reset_tunnel_refused"), envoy.count("retry_cured_tunnel_refused")), (1, 0));
}

#[test]
fn a_request_without_the_right_is_explained_but_not_flagged() {
    let config = config("{}");
    let fake = Fake::new(Request::new("POST", "/")).ended(1, 503, UC, BROKEN);
    let envoy = run_while(&config, fake, || breaks(&config, "10.244.0.7", End::Orderly));
    assert_eq!((envoy.meta("reset_class"), envoy.flags.len()), (Some("ended_unanswered"), 0));
    assert_eq!(envoy.count("retry_granted_unprocessed"), 1);
}

#[test]
fn a_failure_that_was_no_end_of_a_connection_is_explained_by_none() {
    let config = config("{}");
    const UR: i64 = 1 << 4;
    for (flags, details) in
        [(0, "upstream_per_try_timeout"), (UR, "upstream_reset_before_response_started{remote_reset}")]
    {
        let fake = Fake::new(Request::new("POST", "/")).ended(1, 503, flags, details);
        let envoy = run_while(&config, fake, || breaks(&config, "10.244.0.7", End::Broken));
        assert_eq!(envoy.meta("reset_class"), None, "{details}: another request's tunnel broke");
        assert_eq!(envoy.count("retry_reset_unexplained"), 1, "{details}");
    }
}

#[test]
fn a_body_over_the_limit_is_counted_as_such() {
    let mut fake = Fake::new(Request::new("PUT", "/")).ended(1, 503, UC, BROKEN);
    fake.body_piece = 1_001;
    assert_eq!(run(&config("{}"), fake).count("retry_outcome_body_over_limit"), 1);
}

#[test]
fn an_envoy_that_gives_up_between_attempts_tells_the_client_of_the_upstream_s_failure() {
    let outgrown = "request_payload_exceeded_retry_buffer_limit";
    for (method, mode, status, details, expected) in [
        ("PUT", "enforce", b"507", outgrown, b"503"),
        ("PUT", "observe", b"507", outgrown, b"507"),
        ("POST", "enforce", b"507", outgrown, b"503"),
        ("PUT", "enforce", b"507", "via_upstream", b"507"),
        ("PUT", "enforce", b"200", outgrown, b"200"),
    ] {
        let config = config(&format!(r#"{{"mode":"{mode}"}}"#));
        let mut envoy = Fake::new(Request::new(method, "/")).ended(1, 507, 0, details);
        envoy.status = Some(status.to_vec());
        let mut filter = config.new_http_filter(&mut envoy);
        filter.on_request_headers(&mut envoy, false);
        filter.on_local_reply(&mut envoy, 507, EnvoyBuffer::new(details.as_bytes()), false);
        filter.on_response_headers(&mut envoy, true);
        assert_eq!(envoy.status.as_deref(), Some(&expected[..]), "{method} {mode} {details}");
    }
}

#[test]
fn an_outage_uses_the_budget_up_and_the_rest_passes_without_the_right() {
    let config = config(r#"{"budget":{"ratio":0,"min_per_second":3,"window":"10s"}}"#);
    let ends: Vec<Fake> =
        (0..20).map(|_| run(&config, Fake::new(Request::new("GET", "/")).ended(2, 503, UC, BROKEN))).collect();
    let granted: u64 = ends.iter().map(|envoy| envoy.count("retry_granted")).sum();
    let refused: u64 = ends.iter().map(|envoy| envoy.count("retry_decision_budget_exhausted")).sum();
    assert!((3..=4).contains(&granted), "three a second, and the test is shorter than a second: {granted}");
    assert_eq!(granted + refused, 20);
    assert_eq!(ends.last().expect("the last").header(ON), None);
}

#[test]
fn a_stream_that_is_dropped_without_an_end_gives_its_right_back() {
    let config = config("{}");
    let mut envoy = Fake::new(Request::new("GET", "/"));
    let mut filter = config.new_http_filter(&mut envoy);
    let held = || config.shared.loaded.budget(budgets::now(), |budget| budget.held());
    filter.on_request_headers(&mut envoy, true);
    assert_eq!(held(), 1);
    drop(filter);
    assert_eq!(held(), 0);
}

#[test]
fn a_long_response_holds_no_right_while_it_goes_on() {
    let config = config("{}");
    let mut envoy = Fake::new(Request::new("GET", "/events")).ended(2, 200, 0, "");
    let mut filter = config.new_http_filter(&mut envoy);
    let budget = || config.shared.loaded.budget(budgets::now(), |budget| (budget.held(), budget.balance()));
    filter.on_request_headers(&mut envoy, true);
    let (_, before) = budget();
    filter.on_response_headers(&mut envoy, false);
    let (held, after) = budget();
    assert_eq!(held, 0, "thousands of open streams would leave no right to anybody else");
    assert!(after < before, "the retry that it took is paid for: {before} then {after}");
    filter.on_stream_complete(&mut envoy);
    let (held, at_the_end) = budget();
    assert_eq!(held, 0);
    assert!((at_the_end - after).abs() < 0.5, "it is paid for once: {after} then {at_the_end}");
}

#[test]
fn an_envoy_that_does_not_show_attempts_is_not_asked_for_them() {
    let old = RetryConfig::new(b"{}", &mut Loading::default(), Endpoints::new(64), false);
    let config = old.expect("a valid policy");
    let mut envoy = Fake::new(Request::new("GET", "/")).ended(2, 503, UC, BROKEN);
    let mut filter = config.new_http_filter(&mut envoy);
    filter.on_request_headers(&mut envoy, true);
    filter.on_local_reply(&mut envoy, 503, EnvoyBuffer::new(BROKEN.as_bytes()), false);
    filter.on_stream_complete(&mut envoy);
    let young = [Attribute::UpstreamRequestAttemptCount, Attribute::ResponseFlags, Attribute::ResponseCodeDetails];
    let probes = envoy.probes.borrow().clone();
    assert!(!young.iter().any(|id| probes.contains(&(*id as u32))), "Envoy 1.38 logs an error for each: {probes:?}");
    assert_eq!(envoy.count("retry_outcome_failed_unknown"), 1);
    assert_eq!(envoy.flags, [FLAG], "the local reply's details tell the reset");

    let mut counted = Fake::new(Request::new("GET", "/")).ended(0, 200, 0, "");
    let mut filter = config.new_http_filter(&mut counted);
    filter.on_request_headers(&mut counted, true);
    counted.set_request_header(ATTEMPT_COUNT, b"2");
    filter.on_stream_complete(&mut counted);
    assert_eq!(counted.count("retry_outcome_succeeded"), 1, "the attempt count header tells what the attribute would");
}

#[test]
fn bytes_that_are_no_text_pass_through() {
    let mut request = Request::new("GET", "/").with("x-any", [0xff, 0x00]).with("x-envoy-retry-on", [0xff]);
    request.path = Some(vec![b'/', 0xff, 0xfe]);
    request.authority = Some(vec![0x80]);
    let envoy = run(&config("{}"), Fake::new(request).ended(1, 200, 0, ""));
    let value = envoy.get_request_header_value(ON).expect("conditions").as_slice().to_vec();
    assert!(value.starts_with(&[0xff, b',']), "what the caller sent stays, byte for byte");
}

#[test]
fn the_documentation_lists_every_counter_and_no_other() {
    let docs = include_str!("../../docs/retry.md");
    let (_, section) = docs.split_once("\n## Counters\n").expect("a section on counters");
    let (section, _) = section.split_once("\n## ").expect("a section after it");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let expand = |name: &str| -> Vec<String> {
        match name.split_once('<') {
            Some((part, "reason>")) => Reason::ALL.iter().map(|reason| format!("{part}{}", reason.name())).collect(),
            Some((part, "class>")) => {
                crate::endpoints::ResetClass::ALL.iter().map(|class| format!("{part}{}", class.name())).collect()
            }
            _ => vec![name.to_owned()],
        }
    };
    let mut listed: Vec<String> = names.flat_map(expand).collect();
    let mut defined = counters();
    listed.sort();
    defined.sort();
    assert_eq!(listed, defined, "docs/retry.md, section Counters");
    let (_, decision) = docs.split_once("\n## The decision\n").expect("a section on the decision");
    for reason in Reason::ALL {
        assert!(decision.contains(&format!("`{}`", reason.name())), "docs/retry.md does not explain {}", reason.name());
    }
}
