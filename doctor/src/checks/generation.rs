//! The way of the generation into the pool key.

use super::{
    Case,
    tunnel::{self, defects},
};
use crate::{Code, Finding, model::Sharing, paste};

/// The order of fence, `set_filter_state` and `tcp_proxy`; and whether the second is there.
pub(super) fn order(case: &Case<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for tunnel in tunnel::all(case.proxy) {
        let Some((fence, _)) = tunnel.fences().next() else { continue };
        let mut wrong = Vec::new();
        if fence > tunnel.end {
            wrong.push("the fence stands after tcp_proxy");
        }
        match tunnel.generations().next() {
            None if case.knows_listeners() => findings.push(
                Finding::new(Code::GenerationMissing, tunnel.place(), "No set_filter_state takes the generation.")
                    .paste(paste::generation()),
            ),
            None => {}
            Some((index, _)) if index > tunnel.end => wrong.push("set_filter_state stands after tcp_proxy"),
            Some((index, _)) if index < fence => wrong.push("set_filter_state stands before the fence"),
            Some(_) => {}
        }
        if !wrong.is_empty() {
            let message = format!("In this chain {}.", wrong.join(", and "));
            let node = &case.proxy.bootstrap.node;
            findings.push(Finding::new(Code::FilterOrder, tunnel.place(), message).paste(paste::fence(node)));
        }
    }
    findings
}

/// How the generation is set.
pub(super) fn object(case: &Case<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for tunnel in tunnel::all(case.proxy) {
        for (_, object) in tunnel.generations() {
            let place = format!("{}, object {}", tunnel.place(), object.key);
            let found = |code, message: String| Finding::new(code, place.clone(), message).paste(paste::generation());
            let wrong = defects(object);
            if !wrong.is_empty() {
                findings.push(found(
                    Code::GenerationWrong,
                    format!("This does not reach the pool key: {}.", wrong.join("; ")),
                ));
            }
            if object.shared == Sharing::None {
                findings.push(found(Code::GenerationNotShared, "shared_with_upstream is not set.".to_owned()));
            }
            let empty: Vec<&str> = [("omit_empty_values", object.omits_empty), ("skip_if_empty", object.skips_empty)]
                .into_iter()
                .filter_map(|(name, set)| (!set).then_some(name))
                .collect();
            if !empty.is_empty() {
                findings.push(found(Code::GenerationWhenEmpty, format!("Not set: {}.", empty.join(", "))));
            }
        }
    }
    findings
}
