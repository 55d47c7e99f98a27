//! The ztunnel under test: the stand-in, or the binary that `ZTUNNEL` names.

use std::time::Duration;

use lab::pod::{Pod, PodSpec};
use lab::ztunnel::real::{self, Process, Workload};

use crate::client::{World, ip};

/// A pod behind a ztunnel.
pub struct Subject {
    pub world: World,
    pub pod: Pod,
    real: Option<Process>,
    deadline: Duration,
}

// === impl Subject ===

impl Subject {
    /// One pod; what is open when ztunnel is told to end is served for `deadline`.
    pub async fn start(deadline: Duration) -> Subject {
        let addr = ip("10.244.1.1");
        let Some(binary) = real::binary() else {
            let world = World::new().await;
            let pod = world.pod("pod-a", "10.244.1.1").await;
            return Subject { world, pod, real: None, deadline };
        };
        let world = World::of_real_ztunnel().await;
        let pod = world.start(PodSpec { hbone: false, ..PodSpec::new("pod-a", addr) }).await;
        let workload = Workload {
            name: "pod-a".to_owned(),
            addr,
            namespace: "default".to_owned(),
            service_account: "default".to_owned(),
        };
        let process = Process::start(&binary, std::slice::from_ref(&workload), deadline).await.expect("ztunnel");
        process.add(&workload, pod.netns()).await.expect("AddWorkload");
        Subject { world, pod, real: Some(process), deadline }
    }

    /// ztunnel is told to end; returns when it has.
    pub async fn terminate(&self) {
        match &self.real {
            Some(process) => process.terminate().await.expect("SIGTERM"),
            None => {
                let ztunnel = self.pod.ztunnel().expect("the stand-in");
                ztunnel.terminate(self.deadline).await.expect("an end");
            }
        }
    }

    /// ztunnel is told that the pod is gone, while its link is up.
    pub async fn remove(&self) {
        match &self.real {
            Some(process) => process.remove("pod-a").await.expect("DelWorkload"),
            None => self.pod.remove_from_ztunnel().await.expect("an end"),
        }
    }
}
