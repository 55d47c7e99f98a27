//! Every code has a planted fault that it finds, and the shipped configuration has none.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stale_guard_doctor::{Code, Exposure};
use support::{Dump, code, codes};

/// A fault: the codes that must be found, and no other; and how it is planted into the shipped configuration.
type Fault = (&'static str, &'static [&'static str], fn(&mut Dump));

fn set(value: &mut Value, key: &str, new: Value) {
    value.as_object_mut().unwrap().insert(key.to_owned(), new);
}

fn unset(value: &mut Value, key: &str) {
    value.as_object_mut().unwrap().remove(key).unwrap_or_else(|| panic!("{key} is not set"));
}

fn retry_on(dump: &mut Dump, words: &str) {
    set(dump.route(), "retry_policy", json!({ "retry_on": words, "num_retries": 2 }));
}

fn hedge(dump: &mut Dump) {
    set(dump.virtual_host(), "hedge_policy", json!({ "hedge_on_per_try_timeout": true }));
    set(dump.route(), "retry_policy", json!({ "per_try_timeout": "0.3s" }));
}

/// A cluster of a service, as istiod makes it.
fn service_cluster(name: &str, source: Value) -> Value {
    json!({ "cluster": { "name": name, "type": "EDS", "eds_cluster_config": { "eds_config": source } } })
}

fn second_chain(dump: &mut Dump, change: impl FnOnce(&mut Vec<Value>)) {
    let chains = dump.listener("connect_originate")["filter_chains"].as_array_mut().unwrap();
    let mut chain = chains[0].clone();
    change(chain["filters"].as_array_mut().unwrap());
    chains.push(chain);
}

const FAULTS: &[Fault] = &[
    // --- what a proxy suffers from ---
    ("no fence", &["SG0101", "SG0103"], |dump| {
        dump.filters("connect_originate").remove(0);
    }),
    ("no fence, and nothing of the module", &["SG0101", "SG0103", "SG0108"], |dump| {
        dump.filters("connect_originate").drain(0..2);
        dump.http_filters().remove(0);
        dump.bootstrap()["bootstrap_extensions"].as_array_mut().unwrap().remove(1);
        dump.without_validators();
    }),
    ("an idle timeout of an hour", &["SG0102"], |dump| {
        let options = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let options = dump.cluster("connect_originate").pointer_mut(options).unwrap();
        set(&mut options["common_http_protocol_options"], "idle_timeout", json!("3600s"));
    }),
    ("no idle timeout at all", &["SG0102"], |dump| {
        let options = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        unset(dump.cluster("connect_originate").pointer_mut(options).unwrap(), "common_http_protocol_options");
    }),
    ("the idle timeout switched off", &["SG0102"], |dump| {
        let options = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let options = dump.cluster("connect_originate").pointer_mut(options).unwrap();
        set(&mut options["common_http_protocol_options"], "idle_timeout", json!("0s"));
    }),
    ("no user timeout", &["SG0103"], |dump| {
        set(dump.fence_config(), "tcp", json!({ "user_timeout": null, "keepalive": null }));
    }),
    ("keepalive without a user timeout", &["SG0103"], |dump| {
        set(dump.fence_config(), "tcp", json!({ "user_timeout": null }));
    }),
    ("a reset is retried", &["SG0104"], |dump| retry_on(dump, "connect-failure,reset")),
    ("any 5xx is retried", &["SG0104"], |dump| retry_on(dump, "5xx")),
    ("a gateway error is retried", &["SG0104"], |dump| retry_on(dump, "gateway-error")),
    ("a reset is retried by the virtual host's policy", &["SG0104"], |dump| {
        unset(dump.route(), "retry_policy");
        set(dump.virtual_host(), "retry_policy", json!({ "retry_on": "reset" }));
    }),
    ("Istio's default retries", &["SG0105"], |dump| {
        retry_on(dump, "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes");
    }),
    ("a status code is retried", &["SG0106"], |dump| {
        let policy = json!({ "retry_on": "retriable-status-codes", "retriable_status_codes": [503], "num_retries": 2 });
        set(dump.route(), "retry_policy", policy);
    }),
    ("a virtual host hedges", &["SG0107"], hedge),
    ("a route hedges, by its own conditions", &["SG0107"], |dump| {
        hedge(dump);
        set(dump.retry_config(), "unprocessed", json!(false));
        set(&mut dump.route()["retry_policy"], "retry_on", json!("connect-failure"));
    }),
    ("hedging with the module's per-try timeout", &["SG0107"], |dump| {
        hedge(dump);
        unset(dump.route(), "retry_policy");
        set(dump.retry_config(), "per_try_timeout", json!("1s"));
    }),
    ("two attempts of ten seconds", &["SG0111"], |dump| {
        set(dump.cluster("connect_originate"), "connect_timeout", json!("10s"));
        set(dump.tcp_proxy(), "max_connect_attempts", json!(2));
    }),
    // --- the module's installation ---
    ("a build without dynamic modules", &["SG0201"], |dump| {
        dump.without_validators();
        set(&mut dump.bootstrap()["node"], "extensions", json!([{ "name": "envoy.filters.http.router" }]));
    }),
    ("the module's file is missing", &["SG0202"], |dump| {
        dump.by_lds("connect_originate");
        let entry = dump.at("/configs/2/dynamic_listeners/0");
        let failed = entry["active_state"]["listener"].clone();
        let details = "Failed to load dynamic module: libstale_guard.so: cannot open shared object file";
        let error = json!({ "failed_configuration": failed, "details": details });
        set(entry, "error_state", error.clone());
        // Envoy has it a second time, alone.
        let entries = dump.at("/configs/2/dynamic_listeners").as_array_mut().unwrap();
        entries.push(json!({ "error_state": error }));
    }),
    ("set_filter_state before the fence", &["SG0203"], |dump| dump.filters("connect_originate").swap(0, 1)),
    ("the fence after tcp_proxy", &["SG0103", "SG0203"], |dump| {
        let filters = dump.filters("connect_originate");
        let fence = filters.remove(0);
        filters.push(fence);
    }),
    ("no set_filter_state", &["SG0204"], |dump| {
        dump.filters("connect_originate").remove(1);
    }),
    ("another factory", &["SG0205"], |dump| set(dump.generation(), "factory_key", json!("envoy.string"))),
    ("no factory", &["SG0205"], |dump| unset(dump.generation(), "factory_key")),
    ("a misspelt metadata key", &["SG0205"], |dump| {
        let source = json!({ "inline_string": "%DYNAMIC_METADATA(stale_guard:generations)%" });
        set(&mut dump.generation()["format_string"], "text_format_source", source);
    }),
    ("set at the TLS handshake", &["SG0205"], |dump| {
        let config = dump.tunnel_filter("envoy.filters.network.set_filter_state").pointer_mut("/typed_config").unwrap();
        let objects = config["on_new_connection"].take();
        unset(config, "on_new_connection");
        set(config, "on_downstream_tls_handshake", objects);
    }),
    ("not shared", &["SG0206"], |dump| unset(dump.generation(), "shared_with_upstream")),
    ("set when empty", &["SG0207"], |dump| unset(dump.generation(), "skip_if_empty")),
    ("a dash when empty", &["SG0207"], |dump| unset(&mut dump.generation()["format_string"], "omit_empty_values")),
    ("the fence may be unloaded", &["SG0208"], |dump| {
        unset(&mut dump.fence()["dynamic_module_config"], "do_not_close");
    }),
    ("the status extension may be unloaded", &["SG0208"], |dump| {
        unset(&mut dump.status()["dynamic_module_config"], "do_not_close");
    }),
    ("two files of the module", &["SG0209"], |dump| {
        set(&mut dump.fence()["dynamic_module_config"], "name", json!("stale_guard_next"));
    }),
    ("one part by its file", &["SG0209"], |dump| {
        let by_file = json!({ "do_not_close": true, "module": { "local": { "filename": "/lib/libstale_guard.so" } } });
        set(dump.fence(), "dynamic_module_config", by_file);
    }),
    ("the fence twice", &["SG0210"], |dump| {
        let filters = dump.filters("connect_originate");
        let fence = filters[0].clone();
        filters.insert(0, fence);
    }),
    ("two configurations", &["SG0211"], |dump| {
        second_chain(dump, |filters| {
            set(&mut filters[0]["typed_config"]["filter_config"]["value"], "max_connection_age", json!("30m"));
        });
    }),
    ("an old configuration that drains", &["SG0211"], |dump| {
        dump.by_lds("connect_originate");
        let entry = dump.at("/configs/2/dynamic_listeners/0");
        let mut old = entry["active_state"].clone();
        let fence = "/listener/filter_chains/0/filters/0/typed_config/filter_config/value";
        set(old.pointer_mut(fence).unwrap(), "max_connection_age", json!("30m"));
        set(entry, "draining_state", old);
    }),
    ("the fence observes", &["SG0103", "SG0212"], |dump| set(dump.fence_config(), "mode", json!("observe"))),
    ("retry is off", &["SG0212"], |dump| set(dump.retry_config(), "mode", json!("off"))),
    ("a fence before the HTTP filters", &["SG0213"], |dump| {
        let fence = dump.filters("connect_originate")[0].clone();
        dump.filters("service").insert(0, fence);
    }),
    ("a filter between retry and the router", &["SG0214"], |dump| {
        dump.http_filters().insert(1, json!({ "name": "envoy.filters.http.lua" }));
    }),
    ("retry where tunnels end", &["SG0215"], |dump| {
        set(&mut dump.virtual_host()["routes"][0], "match", json!({ "connect_matcher": {} }));
    }),
    ("retry in one of two chains", &["SG0216"], |dump| {
        let chains = dump.listener("service")["filter_chains"].as_array_mut().unwrap();
        let mut chain = chains[0].clone();
        let manager = &mut chain["filters"][0]["typed_config"];
        manager["http_filters"].as_array_mut().unwrap().remove(0);
        chains.push(chain);
    }),
    ("retry twice", &["SG0217"], |dump| {
        let retry = dump.http_filters()[0].clone();
        dump.http_filters().insert(0, retry);
    }),
    ("the status extension twice", &["SG0218"], |dump| {
        let extensions = dump.bootstrap()["bootstrap_extensions"].as_array_mut().unwrap();
        let status = extensions[1].clone();
        extensions.push(status);
    }),
    // --- watch ---
    ("nothing watches", &["SG0301"], |dump| {
        dump.without_validators();
        dump.bootstrap()["bootstrap_extensions"].as_array_mut().unwrap().remove(1);
    }),
    ("polls are off, and no validator", &["SG0301"], |dump| {
        dump.without_validators();
        set(&mut dump.status_config()["watch"], "source", json!("none"));
    }),
    ("polls by a cluster that does not exist", &["SG0302"], |dump| {
        set(&mut dump.status_config()["watch"], "cluster", json!("admin"));
    }),
    ("polls that go elsewhere", &["SG0303"], |dump| {
        let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
        set(dump.cluster("prometheus_stats").pointer_mut(endpoint).unwrap(), "port_value", json!(15001));
    }),
    ("no admin endpoint", &["SG0303"], |dump| unset(dump.bootstrap(), "admin")),
    ("no validator for clusters", &["SG0304"], |dump| {
        let ads = dump.bootstrap().pointer_mut("/dynamic_resources/ads_config").unwrap();
        ads["config_validators"].as_array_mut().unwrap().remove(1);
    }),
    ("no validator for endpoints", &["SG0304"], |dump| {
        let ads = dump.bootstrap().pointer_mut("/dynamic_resources/ads_config").unwrap();
        ads["config_validators"].as_array_mut().unwrap().remove(0);
    }),
    ("endpoints from another server, unseen", &["SG0305"], |dump| {
        set(&mut dump.status_config()["watch"], "source", json!("none"));
        let source = json!({ "api_config_source": { "api_type": "GRPC" } });
        dump.at("/configs/1/static_clusters").as_array_mut().unwrap().push(service_cluster("other", source));
    }),
    ("a build with validators, and none", &["SG0306"], |dump| {
        unset(dump.bootstrap().pointer_mut("/dynamic_resources/ads_config").unwrap(), "config_validators");
    }),
    ("Envoy's limit of an answer", &["SG0307"], |dump| unset(dump.bootstrap(), "layered_runtime")),
    ("the control plane's gauge is hidden", &["SG0309"], |dump| {
        let matcher = json!({ "inclusion_list": { "patterns": [{ "prefix": "dynamicmodulescustom" }] } });
        set(dump.bootstrap(), "stats_config", json!({ "stats_matcher": matcher }));
    }),
    ("suspect_after is off", &["SG0310"], |dump| set(dump.status_config(), "suspect_after", Value::Null)),
    ("a control plane that is connected to for 20 s", &["SG0311"], |dump| {
        set(dump.cluster("xds-grpc"), "connect_timeout", json!("20s"));
    }),
    ("no status extension", &["SG0312"], |dump| {
        dump.bootstrap()["bootstrap_extensions"].as_array_mut().unwrap().remove(1);
    }),
    // --- beside it ---
    ("the module's statistics are hidden", &["SG0401"], |dump| {
        let matcher = json!({ "exclusion_list": { "patterns": [{ "safe_regex": { "regex": "dynamicmodules.*" } }] } });
        set(dump.bootstrap(), "stats_config", json!({ "stats_matcher": matcher }));
    }),
    ("all statistics are hidden", &["SG0309", "SG0401"], |dump| {
        set(dump.bootstrap(), "stats_config", json!({ "stats_matcher": { "reject_all": true } }));
    }),
    ("Envoy 1.38 without the attempts header", &["SG0402"], |dump| {
        dump.without_validators();
        let version = json!({ "version": { "major_number": 1, "minor_number": 38, "patch": 3 } });
        set(&mut dump.bootstrap()["node"], "user_agent_build_version", version);
        unset(dump.virtual_host(), "include_request_attempt_count");
    }),
    // --- the dump ---
    ("a wrong type", &["SG0001"], |dump| set(dump.cluster("xds-grpc"), "connect_timeout", json!(5))),
    ("a missing section", &["SG0002"], |dump| {
        dump.at("/configs").as_array_mut().unwrap().remove(3);
    }),
];

/// Those that need more than a dump: found by the tests below.
const ELSEWHERE: &[&str] = &["SG0108", "SG0109", "SG0110", "SG0308"];

#[test]
fn nothing_is_found_on_the_shipped_configuration() {
    let report = Dump::shipped().examine();
    assert_eq!(report.findings, []);
    assert_eq!((report.exposure, report.unread), (Exposure::Fenced, vec![]));
    let mut older = Dump::shipped();
    older.without_validators();
    assert_eq!(older.examine().findings, [], "Envoy 1.39 has no validators, and polls do");
}

#[test]
fn each_planted_fault_is_found_and_nothing_else() {
    for (what, expected, plant) in FAULTS {
        let mut dump = Dump::shipped();
        plant(&mut dump);
        let report = dump.examine();
        let expected: Vec<Code> = expected.iter().map(|id| code(id)).collect();
        assert_eq!(codes(&report), expected, "{what}: {:#?}", report.findings);
        for finding in &report.findings {
            assert!(!finding.message.is_empty() && finding.places.iter().all(|place| !place.is_empty()), "{finding:?}");
        }
    }
}

#[test]
fn every_code_is_found_by_a_planted_fault() {
    let planted: BTreeSet<&str> = FAULTS.iter().flat_map(|(_, codes, _)| codes.iter().copied()).collect();
    let found: BTreeSet<&str> = planted.into_iter().chain(ELSEWHERE.iter().copied()).collect();
    let all: BTreeSet<&str> = Code::ALL.iter().map(|code| code.id()).collect();
    assert_eq!(found, all, "every code needs a fault that shows it");
}

#[test]
fn the_verdict_says_whether_tunnels_are_fenced() {
    let exposed = [
        "no fence",
        "set_filter_state before the fence",
        "no set_filter_state",
        "another factory",
        "not shared",
        "the fence observes",
        "nothing watches",
        "the fence after tcp_proxy",
    ];
    for (what, _, plant) in FAULTS {
        let mut dump = Dump::shipped();
        plant(&mut dump);
        let exposure = dump.examine().exposure;
        if exposed.contains(what) {
            assert_eq!(exposure, Exposure::Exposed, "{what}");
        }
        if what.starts_with("the module's statistics") || what.starts_with("a reset is") {
            assert_eq!(exposure, Exposure::Fenced, "{what}");
        }
    }
    let mut plain = Dump::shipped();
    plain.at("/configs/2/static_listeners").as_array_mut().unwrap().remove(1);
    assert_eq!(plain.examine().exposure, Exposure::NoTunnels);
}

#[test]
fn istiod_s_waypoint_is_told_what_it_suffers_from() {
    let report = Dump::istiod().examine();
    assert_eq!(report.exposure, Exposure::Exposed);
    let expected = ["SG0101", "SG0102", "SG0103", "SG0105", "SG0108"].map(code);
    assert_eq!(codes(&report), expected, "{:#?}", report.findings);
    let text = report.to_string();
    for words in ["1h", "503 UC", "unavailable,cancelled", "namespace: shop", "name: shop-waypoint", "hboneIdleTimeout"]
    {
        assert!(text.contains(words), "{words:?} is missing:\n{text}");
    }
    let mut by_lds = Dump::istiod();
    for name in ["connect_originate", "main_internal"] {
        by_lds.by_lds(name);
    }
    assert_eq!(codes(&by_lds.examine()), expected, "listeners that come by LDS are read alike");
}

#[test]
fn a_listener_that_is_refused_at_the_start_is_not_taken_for_a_proxy_without_tunnels() {
    let mut dump = Dump::shipped();
    dump.by_lds("connect_originate");
    let entry = dump.at("/configs/2/dynamic_listeners/0");
    let failed = entry["active_state"]["listener"].take();
    unset(entry, "active_state");
    set(entry, "error_state", json!({ "failed_configuration": failed, "details": "no such file" }));
    let report = dump.examine();
    assert_eq!((codes(&report), report.exposure), (vec![code("SG0202")], Exposure::Unknown));
    assert!(report.findings[0].message.contains("every one fails"), "{}", report.findings[0].message);
}

#[test]
fn a_listener_that_keeps_its_older_configuration_is_said_to() {
    let (_, _, plant) = FAULTS.iter().find(|(what, _, _)| *what == "the module's file is missing").unwrap();
    let mut dump = Dump::shipped();
    plant(&mut dump);
    let report = dump.examine();
    let finding = &report.findings[0];
    assert_eq!(finding.places, ["listener connect_originate"], "Envoy's two entries are one refusal");
    assert!(finding.message.contains("keeps what it had"), "{}", finding.message);
    assert_eq!(report.exposure, Exposure::Fenced, "what is in force is fenced");
}

#[test]
fn a_fence_that_observes_sets_no_socket_option() {
    let mut dump = Dump::shipped();
    set(dump.fence_config(), "mode", json!("observe"));
    let report = dump.examine();
    let liveness = report.findings.iter().find(|finding| finding.code == code("SG0103")).unwrap();
    assert!(liveness.message.starts_with("Neither"), "{}", liveness.message);
}

#[test]
fn a_policy_for_some_methods_is_not_blind() {
    let mut dump = Dump::shipped();
    retry_on(&mut dump, "reset");
    let only_get = json!([{ "name": ":method", "string_match": { "exact": "GET" } }]);
    set(&mut dump.route()["retry_policy"], "retriable_request_headers", only_get);
    assert_eq!(codes(&dump.examine()), []);
}

#[test]
fn hedging_is_harmless_where_requests_have_no_condition() {
    let mut dump = Dump::shipped();
    hedge(&mut dump);
    let per_route = json!({ "stale_guard.retry": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute",
        "dynamic_module_config": { "name": "stale_guard", "do_not_close": true },
        "per_route_config_name": "retry",
        "filter_config": { "@type": "type.googleapis.com/google.protobuf.Struct", "value": { "unprocessed": false } },
    } });
    set(&mut dump.virtual_host()["routes"][0], "typed_per_filter_config", per_route);
    assert_eq!(codes(&dump.examine()), [], "the route's own configuration replaces the filter's");
}

#[test]
fn a_fence_that_comes_by_ecds_is_seen() {
    let mut dump = Dump::shipped();
    let fence = dump.tunnel_filter("stale_guard.fence");
    let config = fence["typed_config"].take();
    *fence = json!({ "name": "stale_guard.fence", "config_discovery": { "type_urls": [] } });
    let filter = json!({ "name": "stale_guard.fence", "typed_config": config });
    let ecds = json!({ "@type": "type.googleapis.com/envoy.admin.v3.EcdsConfigDump",
        "ecds_filters": [{ "ecds_filter": filter }] });
    dump.at("/configs").as_array_mut().unwrap().push(ecds);
    let report = dump.examine();
    assert_eq!((codes(&report), report.exposure), (vec![], Exposure::Fenced));
}

#[test]
fn json_names_are_read_as_well() {
    fn camel(value: &Value) -> Value {
        match value {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| {
                    let dotted = key.contains(['.', '@', '~', '/']);
                    let key = if dotted { key.clone() } else { camel_case(key) };
                    // A Struct is data: its names stay.
                    (
                        key.clone(),
                        if key == "value" || key.ends_with("metadata") { value.clone() } else { camel(value) },
                    )
                })
                .collect(),
            Value::Array(list) => list.iter().map(camel).collect(),
            other => other.clone(),
        }
    }
    fn camel_case(name: &str) -> String {
        let mut upper = false;
        let letter = |letter: char| match (letter, std::mem::replace(&mut upper, letter == '_')) {
            ('_', _) => None,
            (letter, true) => Some(letter.to_ascii_uppercase()),
            (letter, false) => Some(letter),
        };
        name.chars().filter_map(letter).collect()
    }
    let report = Dump(camel(&Dump::shipped().0)).examine();
    assert_eq!((codes(&report), report.exposure), (vec![], Exposure::Fenced), "{:#?}", report.findings);
    let report = Dump(camel(&Dump::istiod().0)).examine();
    assert_eq!(codes(&report), codes(&Dump::istiod().examine()));
}

#[test]
fn places_of_equal_findings_are_one_finding() {
    let mut dump = Dump::shipped();
    retry_on(&mut dump, "reset");
    let routes = dump.virtual_host()["routes"].as_array_mut().unwrap();
    let route = routes[0].clone();
    routes.extend(vec![route; 499]);
    let report = dump.examine();
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].places.len(), 500);
    assert!(report.to_string().contains("and 497 more"));
}

// --- with /clusters and /stats ---

const CLUSTERS: &str = "\
inbound-vip|80|http|echo::added_via_api::true\n\
inbound-vip|80|http|echo::envoy://connect_originate/10.244.1.1:8080::cx_active::1\n\
connect_originate::added_via_api::false\n\
connect_originate::10.244.1.1:15008::cx_active::1\n\
connect_originate::10.244.1.2:15008::cx_active::3\n\
connect_originate::10.244.1.3:15008::cx_active::0\n";

#[test]
fn connections_to_addresses_that_nobody_lists_are_shown() {
    let report = Dump::istiod().examine_with(Some(CLUSTERS), None);
    let finding = report.findings.iter().find(|finding| finding.code == code("SG0109")).expect("found");
    assert!(finding.message.contains("3 connections to 1 addresses"), "{}", finding.message);
    let fenced = Dump::shipped().examine_with(Some(CLUSTERS), None);
    assert_eq!(codes(&fenced), [], "behind a fence no new tunnel uses them");
}

#[test]
fn endpoints_that_no_fence_guards_are_shown() {
    let mut dump = Dump::shipped();
    let ads = json!({ "ads": {} });
    let clusters = dump.at("/configs/1/static_clusters").as_array_mut().unwrap();
    clusters.push(service_cluster("inbound-vip|80|http|echo", ads));
    assert_eq!(codes(&dump.examine_with(Some(CLUSTERS), None)), []);
    for (address, what) in [("10.244.1.9:8080", "plain"), ("envoy://inner_connect_originate/10.9.0.1:15008", "another")]
    {
        let more = format!("{CLUSTERS}inbound-vip|80|http|echo::{address}::cx_active::0\n");
        let report = dump.examine_with(Some(&more), None);
        assert_eq!(codes(&report), [code("SG0110")]);
        assert!(report.findings[0].message.contains(what), "{}", report.findings[0].message);
    }
}

#[test]
fn an_answer_over_the_limit_is_an_error() {
    let mut dump = Dump::shipped();
    let key =
        json!({ "layers": [{ "name": "static", "static_layer": { "http": { "async_response_buffer_limit": 100 } } }] });
    set(dump.bootstrap(), "layered_runtime", key);
    assert_eq!(codes(&dump.examine()), []);
    assert_eq!(codes(&dump.examine_with(Some(CLUSTERS), None)), [code("SG0308")]);
}

#[test]
fn what_the_proxy_shows_counts_more_than_its_stats_matcher() {
    let mut dump = Dump::shipped();
    set(dump.bootstrap(), "stats_config", json!({ "stats_matcher": { "reject_all": true } }));
    let shown = "control_plane.connected_state: 1\ndynamicmodulescustom.fence_tunnels: 5\n";
    assert_eq!(codes(&dump.examine_with(None, Some(shown))), []);
    assert_eq!(codes(&Dump::shipped().examine_with(None, Some(""))), [code("SG0401")]);
    let mut named = Dump::shipped();
    set(&mut named.fence()["dynamic_module_config"], "metrics_namespace", json!("istio_guard"));
    assert_eq!(codes(&named.examine_with(None, Some("istio_guard.fence_tunnels: 5\n"))), []);
}

#[test]
fn what_is_to_be_pasted_is_yaml() {
    let istio = json!({ "ISTIO_VERSION": "1.31.0", "NAMESPACE": "a: b", "LABELS": null });
    let mut pasted = 0;
    for (what, _, plant) in FAULTS {
        for metadata in [Value::Null, istio.clone()] {
            let mut dump = Dump::shipped();
            plant(&mut dump);
            set(&mut dump.bootstrap()["node"], "metadata", metadata);
            for paste in dump.examine().findings.into_iter().filter_map(|finding| finding.paste) {
                let value: Value = serde_saphyr::from_str(&paste).unwrap_or_else(|e| panic!("{what}: {e}:\n{paste}"));
                assert!(value.is_object() || value.is_array(), "{what}:\n{paste}");
                pasted += 1;
            }
        }
    }
    assert!(pasted > 80, "{pasted}");
}

#[test]
fn the_pasted_filters_cure_what_they_are_pasted_for() {
    let mut dump = Dump::shipped();
    dump.filters("connect_originate").drain(0..2);
    let paste = dump.examine().findings.iter().find(|finding| finding.code == code("SG0101")).unwrap().paste.clone();
    let filters: Vec<Value> = serde_saphyr::from_str(&paste.unwrap()).unwrap();
    dump.filters("connect_originate").splice(0..0, filters);
    let report = dump.examine();
    assert_eq!((codes(&report), report.exposure), (vec![], Exposure::Fenced));

    let mut waypoint = Dump::istiod();
    let paste =
        waypoint.examine().findings.iter().find(|finding| finding.code == code("SG0101")).unwrap().paste.clone();
    let envoy_filter: Value = serde_saphyr::from_str(&paste.unwrap()).unwrap();
    let patches = envoy_filter["spec"]["configPatches"].as_array().unwrap();
    let filters: Vec<Value> = patches.iter().map(|patch| patch["patch"]["value"].clone()).collect();
    waypoint.filters("connect_originate").splice(0..0, filters);
    let codes = codes(&waypoint.examine());
    for gone in ["SG0101", "SG0103", "SG0203", "SG0204", "SG0205", "SG0206"] {
        assert!(!codes.contains(&code(gone)), "{gone} is cured: {codes:?}");
    }
    assert!(codes.contains(&code("SG0301")), "the status extension is still to be added: {codes:?}");
}
