//! The bootstrap extension's hooks, called as Envoy would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use super::exported::*;
use super::timer::Timer;
use super::*;
use crate::abi::envoy_dynamic_module_type_envoy_buffer as EB;
use crate::scheduler::EnvoyBootstrapExtensionConfigScheduler;
use crate::testing::{buffer, fake_callbacks, install, with_fake};

thread_local! {
    static COMPLETIONS: Cell<u32> = const { Cell::new(0) };
}

const ENVOY: *mut c_void = ptr::without_provenance_mut(64);

#[derive(Clone, Copy, PartialEq)]
enum Shutdown {
    Done,
    Forgets,
    Panics,
}

struct Config {
    shutdown: Shutdown,
    _timer: Box<dyn EnvoyBootstrapExtensionTimer>,
    _scheduler: Box<dyn EnvoyBootstrapExtensionConfigScheduler>,
}

struct Extension(Shutdown);

fn new_config(
    envoy: &mut dyn EnvoyBootstrapExtensionConfig,
    _name: &str,
    config: &[u8],
) -> Option<Box<dyn BootstrapExtensionConfig>> {
    let shutdown = match config {
        b"forgets" => Shutdown::Forgets,
        b"panics" => Shutdown::Panics,
        b"panic now" => panic!("in the constructor"),
        _ => Shutdown::Done,
    };
    let (timer, scheduler) = (envoy.new_timer(), envoy.new_scheduler());
    Some(Box::new(Config { shutdown, _timer: timer, _scheduler: scheduler }))
}

impl BootstrapExtensionConfig for Config {
    fn new_bootstrap_extension(&self, _envoy: &mut dyn EnvoyBootstrapExtension) -> Box<dyn BootstrapExtension> {
        Box::new(Extension(self.shutdown))
    }

    fn on_timer_fired(&self, _envoy: &mut dyn EnvoyBootstrapExtensionConfig, timer: &dyn EnvoyBootstrapExtensionTimer) {
        timer.enable(std::time::Duration::from_secs(1));
    }

    fn on_admin_request(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> (u32, String) {
        assert!(path != "/panic", "in on_admin_request");
        (200, format!("{method} {path} {body:?}"))
    }
}

impl BootstrapExtension for Extension {
    fn on_shutdown(&mut self, _envoy: &mut dyn EnvoyBootstrapExtension, completion: CompletionCallback) {
        match self.0 {
            Shutdown::Done => completion.done(),
            Shutdown::Forgets => {}
            Shutdown::Panics => panic!("in on_shutdown"),
        }
    }
}

unsafe extern "C" fn complete(context: *mut c_void) {
    assert_eq!(context, ENVOY);
    COMPLETIONS.set(COMPLETIONS.get() + 1);
}

fn extension(bytes: &[u8]) -> (*const c_void, *const c_void) {
    install(fake_callbacks());
    FACTORY.set_for_thread(Some(new_config));
    // SAFETY: the buffers outlive the hooks.
    unsafe {
        let config = envoy_dynamic_module_on_bootstrap_extension_config_new(ENVOY, EB::EMPTY, buffer(bytes));
        (config, envoy_dynamic_module_on_bootstrap_extension_new(config, ENVOY))
    }
}

#[test]
fn shutdown_completes_exactly_once_whatever_the_extension_does() {
    for kind in [&b""[..], b"forgets", b"panics"] {
        let (_, extension) = extension(kind);
        // SAFETY: alive; the second call meets an inert extension if the first panicked.
        unsafe {
            envoy_dynamic_module_on_bootstrap_extension_shutdown(ENVOY, extension, Some(complete), ENVOY);
            assert_eq!(COMPLETIONS.take(), 1, "Envoy would hang, or be told twice");
            envoy_dynamic_module_on_bootstrap_extension_shutdown(ENVOY, extension, Some(complete), ENVOY);
            assert_eq!(COMPLETIONS.take(), 1, "an inert extension must complete as well");
            envoy_dynamic_module_on_bootstrap_extension_destroy(extension);
        }
    }
    // SAFETY: null is allowed.
    unsafe { envoy_dynamic_module_on_bootstrap_extension_shutdown(ENVOY, ptr::null(), Some(complete), ENVOY) };
    assert_eq!(COMPLETIONS.take(), 1);
}

#[test]
fn a_panicking_constructor_rejects_the_configuration() {
    assert!(extension(b"panic now").0.is_null());
}

#[test]
fn timers_and_schedulers_are_deleted_with_the_configuration() {
    let (config, _) = extension(b"");
    assert_eq!(with_fake(|fake| fake.live_handles.len()), 2);
    let fired = ptr::without_provenance_mut(1);
    // SAFETY: alive.
    unsafe {
        envoy_dynamic_module_on_bootstrap_extension_timer_fired(ENVOY, config, fired);
        assert_eq!(with_fake(|fake| fake.live_handles.len()), 2, "a reference to a timer must not delete it");
        envoy_dynamic_module_on_bootstrap_extension_config_destroy(config);
    }
    with_fake(|fake| {
        assert!(fake.live_handles.is_empty(), "a timer or a scheduler leaked");
        assert!(fake.log.iter().all(|(level, _)| *level < 5), "deleted twice: {:?}", fake.log);
    });
}

#[test]
fn an_admin_request_is_answered_even_after_a_panic() {
    let (config, _) = extension(b"");
    let ask = |path: &[u8]| {
        // SAFETY: alive; the buffers outlive the hook.
        let status = unsafe {
            envoy_dynamic_module_on_bootstrap_extension_admin_request(
                ENVOY,
                config,
                buffer(b"GET"),
                buffer(path),
                EB::EMPTY,
            )
        };
        (status, with_fake(|fake| std::mem::take(&mut fake.admin_body)))
    };
    assert_eq!(ask(b"/a\xff"), (200, "GET /a\u{fffd} []".to_owned()));
    assert_eq!(ask(b"/panic").0, 500);
    assert_eq!(ask(b"/b").0, 200, "a panic on one page must not end the status page");
}

#[test]
fn a_timer_works_on_its_own_thread_only() {
    install(fake_callbacks());
    let timer = Timer::create(ENVOY);
    timer.enable(std::time::Duration::from_millis(7));
    let timer = std::thread::spawn(move || {
        install(fake_callbacks());
        timer.enable(std::time::Duration::from_millis(8));
        timer.disable();
        assert!(!timer.enabled());
        with_fake(|fake| {
            assert!(fake.armed.is_empty(), "Envoy's dispatcher was entered from a foreign thread");
            assert_eq!(fake.log.len(), 3, "a misuse must be said");
        });
        timer
    });
    let timer = timer.join().unwrap();
    assert_eq!(with_fake(|fake| fake.armed.clone()), [7]);
    std::thread::spawn(move || {
        install(fake_callbacks());
        drop(timer);
        let log = with_fake(|fake| fake.log.clone());
        assert!(log.iter().all(|(level, _)| *level < 5), "Envoy's timer was deleted on a foreign thread: {log:?}");
        assert_eq!(log.len(), 1);
    })
    .join()
    .unwrap();
    assert_eq!(with_fake(|fake| fake.live_handles.len()), 1, "a foreign drop leaks, it does not delete");
}
