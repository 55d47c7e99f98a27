//! Every cell of `matrix.md` on real Envoy.

use std::collections::BTreeMap;

use lab::{
    bootstrap::{Bootstrap, Variant},
    envoy::Binary,
    mesh::Setup,
};
use serde_json::json;

use super::{
    kinds::{Every, Fault, Kind, Transport},
    setup::guarded,
    table::{Place, Seen, section},
    world::World,
};

const GUARDED: &str = "With the module";
const STOCK: &str = "Without the module";

fn with_module() -> Setup {
    let read = json!({ "grpc": { "service": "shop.Catalog", "method": "Get*" } });
    guarded(json!({
        "idempotency_key_headers": ["idempotency-key"],
        "rules": [{ "name": "catalog-reads", "match": read, "retry": true }],
    }))
}

/// Runs the cells of one transport; returns those that are not as expected.
async fn run(world: &World, cells: &BTreeMap<Place, Option<Seen>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut left = cells.iter().filter(|((.., on), cell)| *on == world.transport && cell.is_some()).count();
    for fault in Fault::EVERY.iter().copied() {
        let cells: Vec<_> = cells
            .iter()
            .filter(|((_, of, transport), _)| *of == fault && *transport == world.transport)
            .filter_map(|((kind, ..), expected)| Some((*kind, expected.as_ref()?)))
            .collect();
        if fault == Fault::Refused {
            world.refuse().await;
        }
        for (kind, expected) in cells {
            let seen = world.meet(kind, fault).await;
            left -= 1;
            if seen != *expected {
                let (kind, fault, over) = (kind.name(), fault.name(), world.transport.name());
                wrong.push(format!("{kind}, {fault}, {over}: expected {expected:?}, saw {seen:?}"));
            }
        }
        if fault == Fault::Refused {
            world.listen();
        }
    }
    assert_eq!(left, 0, "every cell was run");
    world.assert_headers_stripped();
    wrong
}

async fn matrix(setup: Setup, transport: Transport) {
    let world = World::start(setup, transport).await;
    let wrong = run(&world, &section(GUARDED)).await;
    assert!(wrong.is_empty(), "not as matrix.md says:\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_holds_over_http1() {
    matrix(with_module(), Transport::Http1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_holds_over_h2c() {
    matrix(with_module(), Transport::H2c).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_holds_over_hbone() {
    matrix(with_module(), Transport::Hbone).await;
}

/// The waypoint's path on an older Envoy, which has no config validator.
async fn matrix_on(version: &str) {
    let binary = Binary::version(version).unwrap();
    let setup = with_module().envoy(|options| options.binary = Some(binary));
    matrix(setup.bootstrap(Bootstrap::without_config_validators), Transport::Hbone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_holds_on_envoy_1_38() {
    matrix_on("1.38.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_holds_on_envoy_1_39() {
    matrix_on("1.39.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_module_the_matrix_is_worse_as_it_says() {
    let cells = section(STOCK);
    for transport in Transport::EVERY {
        let world = World::start(Setup::new(Variant::Stock), *transport).await;
        let wrong = run(&world, &cells).await;
        assert!(wrong.is_empty(), "not as matrix.md says:\n{}", wrong.join("\n"));
    }
}

#[test]
fn the_table_has_every_cell_of_the_product() {
    let cells = section(GUARDED);
    for kind in Kind::EVERY {
        for fault in Fault::EVERY {
            for transport in Transport::EVERY {
                assert!(
                    cells.contains_key(&(*kind, *fault, *transport)),
                    "{kind:?}, {fault:?}, {transport:?} is missing"
                );
            }
        }
    }
    assert_eq!(cells.len(), 12 * 7 * 3);
}

#[test]
fn the_control_fails_where_the_module_cures() {
    let (guarded, stock) = (section(GUARDED), section(STOCK));
    let differ = |kind: Kind| {
        stock
            .iter()
            .filter(|((of, ..), cell)| *of == kind && cell.is_some())
            .filter(|(place, cell)| guarded[*place] != **cell)
            .count()
    };
    assert_eq!(
        differ(Kind::Get),
        14,
        "GET is cured wherever no answer began, but where the route's own policy had cured it"
    );
    assert_eq!(differ(Kind::Post), 4, "POST is cured where no upstream can have acted, and nowhere else");
}
