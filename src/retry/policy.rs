//! The operator's policy, compiled once when the configuration loads.

use std::{collections::HashSet, time::Duration};

use serde_json::Value;

use super::{
    PART,
    config::{BudgetSettings, Document, HeaderName, Match, Methods, Refused, Rule},
    matcher::{Matched, Matcher},
    request::Evidence,
    words::Condition,
};
use crate::config::{ConfigError, Mode, Object, parse};

/// How many rules a policy may have: each is looked at, in order, for every request.
pub const MAX_RULES: usize = 1_024;

/// What `retry` does, in the form that a request is compared with.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Act, only watch, or neither.
    pub mode: Mode,
    /// Bound on the load that retries add.
    pub budget: BudgetSettings,
    /// Methods that are eligible without a rule.
    pub methods: Methods,
    /// Whether requests that are not eligible may be sent again where no upstream acted on them.
    pub unprocessed: bool,
    /// How requests are retried that no rule names.
    pub terms: Terms,
    keys: Vec<String>,
    rules: Vec<CompiledRule>,
}

/// How a request is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// When Envoy retries.
    pub on: Vec<Condition>,
    /// How often, at most.
    pub max_retries: u32,
    /// How long one attempt may take; `None`: as the route says.
    pub per_try_timeout: Option<Duration>,
}

/// A rule, compiled.
#[derive(Debug, Clone)]
pub struct CompiledRule {
    /// The operator's name for it.
    pub name: String,
    /// What it says; `None`: never retry.
    pub terms: Option<Terms>,
    matcher: Matcher,
}

/// What the rules say about a request.
#[derive(Debug, Clone, Copy)]
pub enum Ruling<'a> {
    /// This rule is the first that matches.
    By(&'a CompiledRule),
    /// This rule comes first, and whether it matches could not be read.
    Unknown(&'a CompiledRule),
    /// No rule matches.
    None,
}

// === impl Policy ===

impl Policy {
    /// Parses and compiles a configuration document.
    ///
    /// # Errors
    /// What [`parse`] refuses, and documents whose parts contradict each other.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let document: Document = parse(PART, json)?;
        Self::compile(document).map_err(|refused| {
            let json: Value = serde_json::from_slice(json).unwrap_or(Value::Null);
            ConfigError::new(PART, &refused.field, find(&json, &refused.field), refused.allowed)
        })
    }

    fn compile(document: Document) -> Result<Self, Refused> {
        if let Methods::List(list) = &document.methods {
            distinct("methods", list.iter().map(|method| method.0.as_str()))?;
        }
        distinct("idempotency_key_headers", document.idempotency_key_headers.iter().map(|name| name.0.as_str()))?;
        check_conditions("on", &document.on)?;
        let Object(budget) = document.budget;
        if budget.ratio.get() == 0.0 && budget.min_per_second.get() == 0 {
            return Refused::because(
                "budget",
                "must allow some retries: \"ratio\" or \"min_per_second\" above 0 (or \"mode\": \"off\")",
            );
        }
        let terms = Terms {
            on: document.on,
            max_retries: document.max_retries.get(),
            per_try_timeout: document.per_try_timeout.map(crate::config::Span::get),
        };
        Ok(Self {
            mode: document.mode,
            budget,
            methods: document.methods,
            unprocessed: document.unprocessed,
            keys: document.idempotency_key_headers.into_iter().map(|HeaderName(name)| name).collect(),
            rules: compile_rules(&document.rules, &terms)?,
            terms,
        })
    }

    /// The first rule that matches the request.
    #[must_use]
    pub fn ruling(&self, request: &Evidence<'_>) -> Ruling<'_> {
        for rule in &self.rules {
            match rule.matcher.matches(request) {
                Matched::Yes => return Ruling::By(rule),
                Matched::Unknown => return Ruling::Unknown(rule),
                Matched::No => {}
            }
        }
        Ruling::None
    }

    /// Whether the request carries one of the idempotency-key headers with a value.
    #[must_use]
    pub fn has_key(&self, request: &Evidence<'_>) -> bool {
        self.keys.iter().any(|name| request.headers.joined(name).is_some_and(|value| !value.trim_ascii().is_empty()))
    }
}

fn compile_rules(rules: &[Object<Rule>], defaults: &Terms) -> Result<Vec<CompiledRule>, Refused> {
    if rules.len() > MAX_RULES {
        return Refused::because("rules", format!("must not hold more than {MAX_RULES} rules"));
    }
    let mut names = HashSet::new();
    let mut seen: Vec<&Object<Rule>> = Vec::new();
    let mut compiled = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let at = |field: &str| format!("rules[{index}].{field}");
        if !names.insert(rule.name.0.as_str()) {
            return Refused::because(at("name"), "must differ from every other rule's name");
        }
        if let Some(earlier) = seen.iter().find(|earlier| hides(&earlier.matches, &rule.matches)) {
            return Refused::because(
                at("match"),
                format!("can never match: rule \"{}\" comes first and matches all of it", earlier.name.0),
            );
        }
        compiled.push(CompiledRule {
            name: rule.name.0.clone(),
            terms: compile_terms(index, rule, defaults)?,
            matcher: compile_matcher(index, rule)?,
        });
        seen.push(rule);
    }
    Ok(compiled)
}

fn compile_terms(index: usize, rule: &Rule, defaults: &Terms) -> Result<Option<Terms>, Refused> {
    if let Some(on) = &rule.on {
        check_conditions(&format!("rules[{index}].on"), on)?;
    }
    if rule.retry {
        return Ok(Some(Terms {
            on: rule.on.clone().unwrap_or_else(|| defaults.on.clone()),
            max_retries: rule.max_retries.map_or(defaults.max_retries, crate::config::Whole::get),
            per_try_timeout: rule.per_try_timeout.map(crate::config::Span::get).or(defaults.per_try_timeout),
        }));
    }
    let given = [
        ("max_retries", rule.max_retries.is_some()),
        ("per_try_timeout", rule.per_try_timeout.is_some()),
        ("on", rule.on.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((field, _)) => {
            Refused::because(format!("rules[{index}].{field}"), "must be left out of a rule with \"retry\": false")
        }
        None => Ok(None),
    }
}

fn compile_matcher(index: usize, rule: &Rule) -> Result<Matcher, Refused> {
    if let Some(Methods::List(list)) = &rule.matches.methods {
        distinct(&format!("rules[{index}].match.methods"), list.iter().map(|method| method.0.as_str()))?;
    }
    Matcher::compile(&rule.matches)
        .map_err(|refused| Refused { field: format!("rules[{index}].match.{}", refused.field), ..refused })
}

/// Whether every request that `later` matches is matched by `earlier`, as far as equality shows it:
/// each part that `earlier` gives, `later` gives in the same form. `{}` gives none and hides all.
fn hides(earlier: &Match, later: &Match) -> bool {
    fn same<T: PartialEq>(earlier: Option<&T>, later: Option<&T>) -> bool {
        earlier.is_none() || earlier == later
    }
    let methods = match (&earlier.methods, &later.methods) {
        (Some(Methods::List(all)), Some(Methods::List(some))) => some.iter().all(|method| all.contains(method)),
        (all, some) => same(all.as_ref(), some.as_ref()),
    };
    let headers = earlier
        .headers
        .iter()
        .flatten()
        .all(|header| later.headers.as_ref().is_some_and(|headers| headers.contains(header)));
    methods
        && headers
        && same(earlier.authority.as_ref(), later.authority.as_ref())
        && same(earlier.path.as_ref(), later.path.as_ref())
        && same(earlier.grpc.as_ref(), later.grpc.as_ref())
}

fn check_conditions(field: &str, on: &[Condition]) -> Result<(), Refused> {
    distinct(field, on.iter().map(|condition| condition.word()))
}

/// Refuses an empty `methods` or `on` and any entry that comes twice. An empty list of key headers is
/// the default.
fn distinct<'a>(field: &str, list: impl ExactSizeIterator<Item = &'a str>) -> Result<(), Refused> {
    if list.len() == 0 && field != "idempotency_key_headers" {
        return Refused::because(field, "must not be empty");
    }
    let mut seen = HashSet::new();
    for (index, entry) in list.enumerate() {
        if !seen.insert(entry) {
            return Refused::because(format!("{field}[{index}]"), "must not be listed twice");
        }
    }
    Ok(())
}

/// The value at a path such as `rules[2].match.path`.
fn find<'a>(document: &'a Value, path: &str) -> &'a Value {
    path.split(['.', '[', ']'])
        .filter(|segment| !segment.is_empty())
        .try_fold(document, |value, segment| match segment.parse::<usize>() {
            Ok(index) if value.is_array() => value.get(index),
            _ => value.get(segment),
        })
        .unwrap_or(&Value::Null)
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
