//! What an xDS response changes: the rules of the protocol, without Envoy.
//!
//! Source: Envoy, "xDS REST and gRPC protocol".

use std::collections::HashSet;

use super::{
    Assignment,
    config::Statuses,
    decode_assignment, decode_cluster,
    listings::{Change, Listings, Sink, Source},
};

/// A response, as the validator sees it.
#[derive(Debug, Clone, Copy)]
pub struct Response<'a> {
    /// What it lists.
    pub resources: &'a [Resource<'a>],
    /// What it takes away.
    pub removed: Removed<'a>,
}

/// One resource of a response.
#[derive(Debug, Clone, Copy)]
pub struct Resource<'a> {
    /// Its name, as far as the response says it outside of the body.
    pub name: &'a str,
    /// The message; none for a renewed time to live, which changes nothing.
    pub body: Option<&'a [u8]>,
}

/// What a response takes away.
#[derive(Debug, Clone, Copy)]
pub enum Removed<'a> {
    /// Delta: these resources.
    Named(&'a [&'a str]),
    /// State of the world: of clusters all that it does not list. An EDS response need not list every resource.
    AllOthers,
}

/// What was read of a response.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) change: Change,
    /// Resources that could not be read, with the reason.
    pub(super) unreadable: Vec<(String, prost::DecodeError)>,
    /// A cluster with endpoints that come by LEDS.
    pub(super) leds: Option<String>,
}

/// Takes in an EDS response.
pub(super) fn eds(
    response: &Response<'_>,
    treat_as_removed: &Statuses,
    listings: &mut Listings,
    sink: &mut impl Sink,
) -> Read {
    let mut read = Read::default();
    for resource in response.resources {
        let Some(bytes) = resource.body else { continue };
        match decode_assignment(bytes) {
            Ok(assignment) => {
                let listed = listed(&assignment, treat_as_removed);
                read.change += listings.update(Source::Validator, &assignment.cluster, listed, sink);
                if assignment.ignored.leds > 0 {
                    read.leds = Some(assignment.cluster);
                }
            }
            Err(error) => read.unreadable.push((resource.name.to_owned(), error)),
        }
    }
    if let Removed::Named(names) = response.removed {
        for name in names {
            // Envoy keeps the hosts that it has. The resource counts as reported by the validator, and empty, else a
            // poll would list them anew.
            read.change += listings.update(Source::Validator, name, Vec::new(), sink);
        }
    }
    read
}

/// Takes in a CDS response.
pub(super) fn cds(response: &Response<'_>, listings: &mut Listings, sink: &mut impl Sink) -> Read {
    let mut read = Read::default();
    let mut seen = HashSet::new();
    for resource in response.resources {
        match resource.body.map(decode_cluster) {
            Some(Ok((name, assignment))) => {
                read.change += listings.cluster(&name, assignment.as_deref(), sink);
                seen.insert(name);
            }
            // It is listed, so it is not gone.
            Some(Err(error)) => {
                seen.insert(resource.name.to_owned());
                read.unreadable.push((resource.name.to_owned(), error));
            }
            None => {
                seen.insert(resource.name.to_owned());
            }
        }
    }
    let gone: Vec<String> = match response.removed {
        Removed::Named(names) => names.iter().map(|name| (*name).to_owned()).collect(),
        Removed::AllOthers => listings.clusters().filter(|name| !seen.contains(*name)).map(str::to_owned).collect(),
    };
    for name in gone {
        read.change += listings.cluster_removed(&name, sink);
    }
    read
}

fn listed(assignment: &Assignment, treat_as_removed: &Statuses) -> Vec<std::net::IpAddr> {
    let endpoints = assignment.endpoints.iter();
    endpoints.filter(|(_, health)| !treat_as_removed.contains(*health)).map(|(ip, _)| *ip).collect()
}
