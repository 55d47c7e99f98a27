//! Moves the whole process into namespaces of its own, before `main`.
//!
//! Everything the lab builds (bridge, veth pairs, pods, the proxy) lives in network namespaces made
//! by this process, so the host's network is neither seen nor touched, and the kernel removes all of
//! it when the process ends, however it ends.
//!
//! `unshare(CLONE_NEWUSER)` works only in a process with one thread (user_namespaces(7)), and a test
//! harness starts threads before it calls a test. So a constructor does it, before `main`. It runs
//! in every binary that uses [`crate::netns`], because [`status`] is defined in the same module.
//!
//! - With `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`: new network and mount namespaces.
//! - Else, where the kernel allows user namespaces: a new user namespace too, in which the caller's
//!   uid and gid are 0.
//! - Neither: nothing happens here, and the first use of the lab fails with an error that says what
//!   to enable. A binary that links the lab without using it runs as ever.

use std::ffi::CStr;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::netlink::set_loopback_up;

/// Set for children of the lab, which already live where they should: see [`super::Netns::spawn`].
pub const MARKER: &str = "STALE_GUARD_LAB_SANDBOX";

/// How this process was isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The process had the capabilities: new network and mount namespaces.
    Privileged,
    /// A user namespace of its own, and network and mount namespaces that belong to it.
    UserNamespace,
    /// A child of a process of the lab: it keeps the namespaces it was started in.
    Inherited,
}

/// Why this process could not be isolated.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the lab needs network namespaces of its own, and could not make them.\n  \
     as is (needs CAP_SYS_ADMIN and CAP_NET_ADMIN): {privileged}\n  \
     with a user namespace: {user_namespace}\n\
     Enable one of:\n  \
     - run as root;\n  \
     - unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 (Debian), \
     sysctl -w user.max_user_namespaces=15000 user.max_net_namespaces=15000, \
     sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu);\n  \
     - in a container: --privileged, or --cap-add SYS_ADMIN --cap-add NET_ADMIN \
     --security-opt apparmor=unconfined"
)]
pub struct Unavailable {
    privileged: String,
    user_namespace: String,
}

static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
static STATUS: OnceLock<Result<Kind, Unavailable>> = OnceLock::new();

/// How the process is isolated, or why it is not.
///
/// # Errors
/// [`Unavailable`], whose message says what to enable.
pub fn status() -> Result<Kind, Unavailable> {
    match STATUS.get() {
        Some(status) => status.clone(),
        // Only if the linker dropped the constructor; a test guards against it.
        None => Err(Unavailable {
            privileged: "the constructor in lab::sandbox did not run".to_owned(),
            user_namespace: "not tried".to_owned(),
        }),
    }
}

/// The running program's file. Asked before the process moves: under a chroot, `/proc/self/exe` names a
/// path of the mount namespace that it came from.
#[must_use]
pub fn program() -> Option<PathBuf> {
    PROGRAM.get().cloned().flatten().or_else(|| std::env::current_exe().ok())
}

// Must not panic: an unwinding constructor would abort a process that may never use the lab.
#[ctor::ctor(unsafe)]
fn isolate_before_main() {
    let _ = PROGRAM.set(std::env::current_exe().ok());
    if STATUS.get().is_none() {
        let isolated = isolate();
        if matches!(isolated, Ok(Kind::Privileged | Kind::UserNamespace)) {
            // Without it whatever needs the loopback says so itself, in a place that can be read.
            let _ = set_loopback_up();
        }
        let _ = STATUS.set(isolated);
    }
}

fn isolate() -> Result<Kind, Unavailable> {
    if std::env::var_os(MARKER).is_some() {
        return Ok(Kind::Inherited);
    }
    let namespaces = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    let privileged = if may_configure_networks() {
        match unshare(namespaces) {
            Ok(()) => {
                detach_mounts();
                return Ok(Kind::Privileged);
            }
            Err(errno) => format!("unshare(NEWNET|NEWNS): {}", errno.desc()),
        }
    } else {
        "CAP_SYS_ADMIN or CAP_NET_ADMIN is missing".to_owned()
    };
    // Read before the move: inside the new namespace both read as the overflow id.
    let (uid, gid) = (geteuid(), getegid());
    let user_namespace = match unshare(CloneFlags::CLONE_NEWUSER | namespaces) {
        Ok(()) => match map_to_root(uid.as_raw(), gid.as_raw()) {
            Ok(()) => {
                detach_mounts();
                return Ok(Kind::UserNamespace);
            }
            Err(error) => format!("uid and gid maps: {error}"),
        },
        Err(errno) => format!("unshare(NEWUSER|NEWNET|NEWNS): {}", errno.desc()),
    };
    Err(Unavailable { privileged, user_namespace })
}

/// Whether the effective set has `CAP_SYS_ADMIN` (21) and `CAP_NET_ADMIN` (12), as capabilities(7)
/// numbers them. With the first alone the namespaces could be made, but not configured.
fn may_configure_networks() -> bool {
    const NEEDED: u64 = 1 << 21 | 1 << 12;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & NEEDED == NEEDED)
}

/// user_namespaces(7): without privilege one id may be mapped, and the gid only after `setgroups`
/// was denied.
fn map_to_root(uid: u32, gid: u32) -> std::io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Keeps mounts of this process from reaching the host. Failure is harmless: the lab mounts nothing
/// that it needs.
fn detach_mounts() {
    let none: Option<&CStr> = None;
    let _ = mount(none, c"/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constructor_runs_and_isolates_the_test_binary() {
        let kind = status().expect("this machine must allow namespaces");
        assert_ne!(kind, Kind::Inherited, "a test binary makes its own namespaces");
        let links = fs::read_to_string("/proc/net/dev").expect("proc is mounted");
        let devices = links.lines().skip(2).filter(|line| line.contains(':')).count();
        assert!(
            devices <= 1 || !links.contains("eth0:"),
            "the process still sees the host's network devices:\n{links}"
        );
    }

    #[test]
    fn the_error_names_what_to_enable() {
        let text = Unavailable { privileged: "p".into(), user_namespace: "u".into() }.to_string();
        for hint in ["unprivileged_userns_clone", "max_user_namespaces", "--privileged", "NET_ADMIN"] {
            assert!(text.contains(hint), "message lacks {hint}: {text}");
        }
    }
}
