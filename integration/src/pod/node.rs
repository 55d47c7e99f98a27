//! A node: the pods that share one ztunnel process.

use futures::future::try_join_all;

use super::running::Pod;
use crate::tcp::Ending;
use crate::ztunnel::Ztunnel;

/// The ztunnels of the pods of one node, which live and die together.
#[derive(Clone, Default)]
pub struct Node {
    ztunnels: Vec<Ztunnel>,
}

impl Node {
    /// A node with these pods.
    ///
    /// # Errors
    /// A pod has no ztunnel.
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> anyhow::Result<Self> {
        let ztunnels = pods.into_iter().map(|pod| pod.ztunnel().cloned());
        Ok(Self { ztunnels: ztunnels.collect::<Result<_, _>>()? })
    }

    /// The ztunnel process restarts: in all pods every HBONE socket is closed at once; when this
    /// returns, all ports are open again.
    ///
    /// # Errors
    /// A socket stayed open, or a port is taken.
    pub async fn restart_ztunnel(&self, ending: Ending) -> anyhow::Result<()> {
        self.stop_ztunnel(ending).await?;
        self.start_ztunnel()
    }

    /// The first half of a restart: sockets closed, connections refused.
    ///
    /// # Errors
    /// A socket stayed open.
    pub async fn stop_ztunnel(&self, ending: Ending) -> anyhow::Result<()> {
        // All listeners first: none may accept while another is being stopped.
        futures::future::join_all(self.ztunnels.iter().map(Ztunnel::refuse)).await;
        let ends = self.ztunnels.iter().map(|ztunnel| ztunnel.connections().end_all(ending));
        try_join_all(ends).await.map(drop)
    }

    /// The second half of a restart.
    ///
    /// # Errors
    /// A port is taken.
    pub fn start_ztunnel(&self) -> anyhow::Result<()> {
        self.ztunnels.iter().try_for_each(Ztunnel::listen)
    }
}
