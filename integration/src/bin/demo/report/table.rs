//! The table and the progress lines.

use super::data::{Report, VariantResult};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};

/// One line about a variant that has run.
pub(crate) fn progress_line(index: usize, total: usize, variant: &VariantResult) -> String {
    format!(
        "[{}/{total}] {}: {} requests in {:.0} s, {} failed, {} lost in flight",
        index + 1,
        variant.name,
        variant.requests,
        variant.duration_s(),
        variant.failed_get + variant.failed_post,
        variant.in_flight_lost,
    )
}

/// All variants, one row each; fits into 120 columns.
pub(crate) fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header([
        "variant",
        "requests",
        "failed\nGET",
        "failed\nPOST",
        "POST\ntwice",
        "retries",
        "TLS\nhand-\nshakes",
        "p50\nms",
        "p99\nms",
        "slow-\nest\nms",
        "lost in\nflight",
    ]);
    for variant in &report.variants {
        table.add_row([
            variant.name.clone(),
            variant.requests.to_string(),
            variant.failed_get.to_string(),
            variant.failed_post.to_string(),
            variant.duplicate_posts.to_string(),
            variant.retries.to_string(),
            variant.tls_handshakes.to_string(),
            milliseconds(variant.p50_ms),
            milliseconds(variant.p99_ms),
            milliseconds(variant.max_ms),
            variant.in_flight_lost.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "{table}\nLatency is measured from each request's intended start, failed requests included.\n\
         \"POST twice\": executed more than once. \"lost in flight\": executed by a pod that vanished before it\n\
         answered; not counted as failed."
    )
}

fn milliseconds(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}
