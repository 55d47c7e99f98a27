//! What the demo reports: one [`VariantResult`] per variant, as table, JSON and picture.

mod data;
mod picture;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use data::{Report, VariantResult};
pub(crate) use table::{progress_line, table};

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};

// === impl Report ===

impl Report {
    /// Reads a report that [`Report::write`] wrote.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("parsing {}", path.display()))
    }

    /// Writes `report.json` and `report.svg` into this folder and returns their paths.
    pub(crate) fn write(&self, dir: &Path) -> anyhow::Result<[PathBuf; 2]> {
        let files = [dir.join("report.json"), dir.join("report.svg")];
        let contents = [serde_json::to_string_pretty(self)? + "\n", picture::svg(self)?];
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        for (file, content) in files.iter().zip(contents) {
            fs::write(file, content).with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(files)
    }
}
