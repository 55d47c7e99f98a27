//! Whether a module is what its sources say: cargo notes beside each artefact what it was made of.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A source that changed after `module` was built, as cargo's list beside it (`libstale_guard.d`) tells.
/// None where there is no such list: a module from elsewhere is taken as it is.
pub(super) fn newer_source(module: &Path) -> Option<PathBuf> {
    let built = modified(module)?;
    let list = std::fs::read_to_string(module.with_extension("d")).ok()?;
    sources(&list).into_iter().find(|source| modified(source).is_some_and(|changed| changed > built))
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().ok()?.modified().ok()
}

/// The right-hand sides of `target: source source`, where a space within a path is `\ `.
fn sources(list: &str) -> Vec<PathBuf> {
    let rules = list.lines().filter_map(|line| line.split_once(": "));
    let unescaped = |path: &str| PathBuf::from(path.replace('\0', " "));
    let of_rule = |(_, sources): (&str, &str)| -> Vec<PathBuf> {
        sources.replace("\\ ", "\0").split(' ').filter(|path| !path.is_empty()).map(unescaped).collect()
    };
    rules.flat_map(of_rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, FileTimes};
    use std::time::Duration;

    fn file(folder: &Path, name: &str, age: u64) -> PathBuf {
        let path = folder.join(name);
        let file = File::create(&path).unwrap();
        let then = SystemTime::now() - Duration::from_secs(age);
        file.set_times(FileTimes::new().set_modified(then)).unwrap();
        path
    }

    #[test]
    fn a_module_is_stale_once_a_source_of_its_own_changed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let module = file(folder, "libm.so", 60);
        let old = file(folder, "old file.rs", 90);
        file(folder, "foreign.rs", 0);
        assert_eq!(newer_source(&module), None, "without a list nothing is known");
        let list = |source: &Path| {
            let source = source.display().to_string().replace(' ', "\\ ");
            let list = format!("libm.so: /gone.rs {source}\n");
            std::fs::write(folder.join("libm.d"), list).unwrap();
        };
        list(&old);
        assert_eq!(newer_source(&module), None);
        let changed = file(folder, "changed one.rs", 30);
        list(&changed);
        assert_eq!(newer_source(&module), Some(changed));
    }
}
