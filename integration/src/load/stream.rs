//! Long-lived streams: requests whose response stays open until they are released.

use super::client::Connector;
use super::plan::{AnswerHeaders, Protocol, RequestClass};
use super::record::TransportError;
use anyhow::{Context, bail};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// What to open.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// The request; its path must lead to a handler that sends headers and keeps the body open.
    pub class: RequestClass,
    /// Response headers to read the pod's name from.
    pub answer_headers: AnswerHeaders,
    /// How long the response's headers may take.
    pub open_timeout: Duration,
}

/// One open stream on a client connection of its own (HTTP/1.1). Dropping it closes the connection.
#[derive(Debug)]
pub struct HeldStream {
    id: String,
    pod: Option<String>,
    status: u16,
    opened: Instant,
    ended: watch::Receiver<Option<(Instant, StreamEnd)>>,
    release: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// By us, still open until then.
    Released,
    /// The response came to its regular end.
    Complete,
    /// It broke off.
    Broken(TransportError),
}

/// The whole story of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRecord {
    /// Unique id, as in `x-request-id`.
    pub id: String,
    /// Pod that answers it; `None` if the proxy answered by itself.
    pub pod: Option<String>,
    /// Status code.
    pub status: u16,
    /// When the response's headers arrived.
    pub opened: Instant,
    /// When it ended.
    pub ended: Instant,
    /// How it ended.
    pub end: StreamEnd,
}

// === impl StreamSpec ===

impl StreamSpec {
    /// GET on this path, 10 s to open.
    #[must_use]
    pub fn get(authority: &str, path: &str) -> Self {
        Self {
            class: RequestClass::get(authority, path).named("stream"),
            answer_headers: AnswerHeaders::default(),
            open_timeout: Duration::from_secs(10),
        }
    }
}

// === impl HeldStream ===

impl HeldStream {
    /// Opens a stream and returns when the response's headers have arrived.
    ///
    /// # Errors
    /// When it cannot be opened in time. The status is not judged.
    pub async fn open(connector: &Connector, spec: &StreamSpec, id: &str) -> anyhow::Result<Self> {
        let request = spec.class.request(id, Protocol::Http1)?;
        let open = async {
            let tcp = connector().await.context("connecting")?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
            let connection = tokio::spawn(connection);
            let response = sender.send_request(request).await?;
            anyhow::Ok((response, sender, connection))
        };
        let (response, sender, connection) = tokio::time::timeout(spec.open_timeout, open)
            .await
            .with_context(|| format!("stream {id}: no response headers within {:?}", spec.open_timeout))?
            .with_context(|| format!("stream {id}"))?;
        let (head, mut body) = response.into_parts();
        let pod = head.headers.get(&spec.answer_headers.pod);
        let pod = pod.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());

        let (end, ended) = watch::channel(None);
        let (release, mut released) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let how = loop {
                tokio::select! {
                    // Data that is already there must not hide behind the release, nor the reverse.
                    biased;
                    frame = body.frame() => match frame {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => break StreamEnd::Broken(TransportError::from_hyper(&error)),
                        None => break StreamEnd::Complete,
                    },
                    // Also when the stream is dropped.
                    _ = &mut released => break StreamEnd::Released,
                }
            };
            end.send_replace(Some((Instant::now(), how)));
            drop((sender, body));
            connection.abort();
        });
        Ok(Self {
            id: id.to_owned(),
            pod,
            status: head.status.as_u16(),
            opened: Instant::now(),
            ended,
            release: Some(release),
            task,
        })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Pod that answers it.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        self.pod.as_deref()
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<StreamEnd> {
        self.ended.borrow().as_ref().map(|(_, end)| end.clone())
    }

    /// Waits until the stream ends by itself.
    ///
    /// # Errors
    /// When it is still open after `deadline`.
    pub async fn wait_end(&mut self, deadline: Duration) -> anyhow::Result<StreamEnd> {
        let ended = tokio::time::timeout(deadline, self.ended.wait_for(Option::is_some)).await;
        match ended.with_context(|| format!("stream {} still open after {deadline:?}", self.id))?.as_deref() {
            Ok(Some((_, end))) => Ok(end.clone()),
            _ => bail!("stream {}: its task is gone", self.id),
        }
    }

    /// Closes the stream, if it is still open, and tells how it ended.
    ///
    /// # Errors
    /// When its task broke.
    pub async fn release(mut self) -> anyhow::Result<StreamRecord> {
        drop(self.release.take());
        (&mut self.task).await.with_context(|| format!("stream {}", self.id))?;
        let (ended, end) =
            self.ended.borrow().clone().with_context(|| format!("stream {}: no end recorded", self.id))?;
        Ok(StreamRecord {
            id: std::mem::take(&mut self.id),
            pod: self.pod.take(),
            status: self.status,
            opened: self.opened,
            ended,
            end,
        })
    }
}

/// Opens streams until each of these pods answers one, and closes the surplus. Which pod a stream
/// reaches is the proxy's choice, hence the number of attempts.
///
/// # Errors
/// When a stream cannot be opened, or some pod was not reached in `attempts` attempts.
pub async fn hold_one_per_pod(
    connector: &Connector,
    spec: &StreamSpec,
    id_prefix: &str,
    pods: &[String],
    attempts: usize,
) -> anyhow::Result<BTreeMap<String, HeldStream>> {
    let mut held = BTreeMap::new();
    for attempt in 0..attempts {
        if held.len() == pods.len() {
            break;
        }
        let stream = HeldStream::open(connector, spec, &format!("{id_prefix}-stream-{attempt:03}")).await?;
        if let Some(pod) = stream.pod().filter(|pod| pods.iter().any(|wanted| wanted == pod)) {
            held.entry(pod.to_owned()).or_insert(stream);
        }
    }
    let missing: Vec<_> = pods.iter().filter(|pod| !held.contains_key(*pod)).collect();
    if !missing.is_empty() {
        bail!("no stream reached {missing:?} in {attempts} attempts");
    }
    Ok(held)
}
