//! An admin endpoint that misbehaves, in place of Envoy's own.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use lab::{
    bootstrap::Bootstrap,
    mesh::{ECHO, Mesh, WITHIN},
    netns::Netns,
};

use crate::support::{FEEDS, Feed, ip, page, removed, seen, wait_polls};

/// Inside the proxy's namespace.
const FAKE: ([u8; 4], u16) = ([127, 0, 0, 1], 15999);

/// What it answers to `/clusters`.
#[derive(Clone, Debug)]
enum Answer {
    /// Nothing, for ever.
    Nothing,
    /// Status 503.
    Unavailable,
    /// This text, and then the connection breaks.
    Broken(String),
    /// This text.
    Text(String),
}

struct FakeAdmin {
    answer: Mutex<Answer>,
    asked: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

// === impl FakeAdmin ===

impl FakeAdmin {
    fn start(netns: &Netns) -> Arc<Self> {
        let fake = Arc::new(Self {
            answer: Mutex::new(Answer::Nothing),
            asked: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        });
        let listener = netns.tcp_listener(SocketAddr::from(FAKE)).unwrap();
        let serving = Arc::clone(&fake);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let fake = Arc::clone(&serving);
                let service = service_fn(move |request| Arc::clone(&fake).respond(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
            }
        });
        fake
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, std::io::Error>>, Infallible> {
        let body = |chunks: Vec<std::io::Result<Bytes>>| {
            BodyExt::boxed(StreamBody::new(stream::iter(chunks.into_iter().map(|chunk| chunk.map(Frame::data)))))
        };
        if request.uri().path() != "/clusters" {
            return Ok(Response::new(body(vec![Ok("control_plane.connected_state: 1\n".into())])));
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.most_open.fetch_max(self.open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let guard = Open(Arc::clone(&self));
        let answer = self.answer.lock().unwrap().clone();
        let response = match answer {
            Answer::Nothing => {
                // Envoy gives up and closes the connection, which drops this future.
                std::future::pending::<()>().await;
                Response::new(body(Vec::new()))
            }
            Answer::Unavailable => {
                let mut response = Response::new(body(vec![Ok("later\n".into())]));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response
            }
            Answer::Broken(text) => {
                Response::new(body(vec![Ok(text.into()), Err(std::io::Error::other("the connection breaks"))]))
            }
            Answer::Text(text) => Response::new(body(vec![Ok(text.into())])),
        };
        drop(guard);
        Ok(response)
    }
}

struct Open(Arc<FakeAdmin>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

fn to_the_fake(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    let cluster = bootstrap.cluster("prometheus_stats")?;
    let port = "load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value";
    let bootstrap = bootstrap.patch(&format!("{cluster}/{port}"), FAKE.1.into())?;
    crate::support::polls(bootstrap, &serde_json::json!({ "max_interval": "250ms" }))
}

async fn errors(mesh: &Mesh) -> u64 {
    page(mesh, "?limit=0").await["watch"]["admin"]["errors"].as_u64().unwrap()
}

async fn wait_errors(mesh: &Mesh, more_than: u64) {
    let deadline = std::time::Instant::now() + WITHIN;
    while errors(mesh).await <= more_than {
        assert!(std::time::Instant::now() < deadline, "no error is counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_that_fail_are_counted_said_once_and_recover_by_themselves() {
    for feed in [Feed::Admin("1.40.0"), Feed::Admin("1.38.3")] {
        let mesh = feed.setup().bootstrap(to_the_fake).start().await.unwrap();
        let pod = mesh.pod("pod", 1).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        // Nobody listens.
        wait_errors(&mesh, 1).await;
        let fake = FakeAdmin::start(mesh.envoy.netns());
        let truth = mesh.envoy.admin().get("/clusters").await.unwrap();
        let half = truth.get(..truth.len() / 2).unwrap().to_owned();
        for answer in [
            Answer::Unavailable,
            Answer::Broken(half.clone()),
            Answer::Text(half),
            Answer::Text("<html><body>not here</body></html>\n".to_owned()),
            Answer::Text(String::new()),
            Answer::Text("x".repeat(200_000)),
            Answer::Nothing,
        ] {
            let before = errors(&mesh).await;
            // Later on, Envoy gives up on a poll, and the next one may come before the fake notices.
            assert!(fake.most_open.load(Ordering::SeqCst) <= 1, "{feed:?}: one poll at a time");
            fake.answers(answer.clone());
            // The first error may be of a poll that was under way.
            let more = if matches!(answer, Answer::Nothing) { 0 } else { 1 };
            wait_errors(&mesh, before + more).await;
            assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK, "traffic flows: {answer:?}");
        }
        assert!(fake.asked.load(Ordering::SeqCst) > 6);
        let said = mesh.envoy.log().unwrap().matches("the admin endpoint cannot be polled").count();
        assert_eq!(said, 1, "{feed:?}: once is enough");
        assert_eq!(seen(&mesh, ip(1)).await.removals, 0, "{feed:?}: no answer is no removal");
        // It answers again.
        fake.answers(Answer::Text(truth));
        wait_polls(&mesh, 1).await;
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        fake.answers(Answer::Text(mesh.envoy.admin().get("/clusters").await.unwrap()));
        removed(&mesh, ip(1), 1).await;
        let log = mesh.envoy.log().unwrap();
        assert_eq!(log.matches("the admin endpoint can be polled again").count(), 1, "{feed:?}");
        // The next failure is a new one, to be said again.
        fake.answers(Answer::Unavailable);
        let before = errors(&mesh).await;
        wait_errors(&mesh, before).await;
        let said = mesh.envoy.log().unwrap().matches("the admin endpoint cannot be polled").count();
        assert_eq!(said, 2, "{feed:?}");
        assert!(mesh.envoy.log().unwrap().contains("(it answers with status 503)"), "{feed:?}");
        mesh.envoy.assert_alive().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_without_a_cluster_to_go_through_are_errors_and_traffic_flows() {
    let nowhere = |bootstrap| crate::support::polls(bootstrap, &serde_json::json!({ "cluster": "nowhere" }));
    let mesh = FEEDS[2].setup().bootstrap(nowhere).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    wait_errors(&mesh, 1).await;
    assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
    assert!(mesh.envoy.log().unwrap().contains("cluster \"nowhere\""), "the message names the cluster");
}
