//! Age rotation: new tunnels leave an old connection, and nobody is cut off.

use std::time::Duration;

use http::StatusCode;
use lab::{
    bootstrap::Variant,
    mesh::{ECHO, Setup},
};
use serde_json::json;

use crate::scenes::{fence, hung, outer, outer_open};

#[tokio::test(flavor = "multi_thread")]
async fn new_tunnels_move_to_a_fresh_connection_and_the_old_stream_lives_on() {
    let rotate = json!({ "max_connection_age": "1s", "max_connection_age_jitter": 0, "close_fenced": false });
    let (mesh, pod, stream) = hung(Setup::new(Variant::FenceOnly).bootstrap(fence(rotate))).await.unwrap();
    for connections in 2..=4 {
        // The age is what is tested.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        // Requests at the same time need tunnels of their own; the oldest may have an idle one.
        let (one, two) = tokio::join!(mesh.post(ECHO, "/?delay_ms=50"), mesh.post(ECHO, "/?delay_ms=50"));
        assert_eq!((one.unwrap().status, two.unwrap().status), (StatusCode::OK, StatusCode::OK));
        assert_eq!(outer(&pod), connections, "one new connection for all tunnels of one age");
        pod.app().unwrap().close_idle();
    }
    assert!(stream.ended().is_none(), "the stream on the first connection is not cut");
    assert_eq!(outer_open(&pod), 4, "old connections are left to end by themselves");
    stream.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_age_the_connection_stays() {
    let (mesh, pod, _stream) = hung(Setup::new(Variant::FenceOnly)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let (one, two) = tokio::join!(mesh.post(ECHO, "/?delay_ms=50"), mesh.post(ECHO, "/?delay_ms=50"));
    assert_eq!((one.unwrap().status, two.unwrap().status), (StatusCode::OK, StatusCode::OK));
    assert_eq!(outer(&pod), 1);
}
