//! The picture: failures over time, one row per variant, all on the same axes.

use super::data::{EventKind, Report, Slice, VariantResult};
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedF64, RangedF64>>;
type RangedF64 = plotters::coord::types::RangedCoordf64;

const WIDTH: u32 = 1180;
const HEADER: u32 = 116;
const ROW: u32 = 112;
/// Room above each row's plot for its name and counts.
const ROW_TITLE: u32 = 34;
const FOOTER: u32 = 58;
const LEFT: u32 = 64;
const RIGHT: u32 = 28;
const FONT: &str = "sans-serif";

// Distinguishable with any colour vision (Okabe and Ito's palette), on the picture's own white ground.
const GET: RGBColor = RGBColor(0, 114, 178);
const POST: RGBColor = RGBColor(213, 94, 0);
const LOST: RGBColor = RGBColor(173, 181, 189);
const VANISHED: RGBColor = RGBColor(120, 120, 120);
const REUSED: RGBColor = RGBColor(0, 158, 115);
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(108, 117, 125);
const GRID: RGBColor = RGBColor(233, 236, 239);
const FRAME: RGBColor = RGBColor(206, 212, 218);

/// The picture as an SVG document.
pub(super) fn svg(report: &Report) -> anyhow::Result<String> {
    let mut document = String::new();
    draw(report, &mut document).map_err(|error| anyhow!("drawing the picture: {error}"))?;
    Ok(document)
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(report: &Report, document: &mut String) -> Drawn {
    let rows = u32::try_from(report.variants.len())?;
    let height = HEADER + rows * ROW + FOOTER;
    let root = SVGBackend::with_string(document, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    header(&root)?;

    let seconds = report.variants.iter().map(VariantResult::duration_s).fold(1.0, f64::max);
    let most = report.variants.iter().flat_map(|variant| &variant.failures_over_time).map(total).max();
    let (step, top) = scale(most.unwrap_or(0));
    for (index, variant) in (0..).zip(&report.variants) {
        let y = i32::try_from(HEADER + index * ROW)?;
        let last = index + 1 == rows;
        title(&root, variant, y)?;
        let plot = root.clone().shrink((0, y + i32::try_from(ROW_TITLE)?), (WIDTH, ROW - ROW_TITLE));
        row(&plot, variant, seconds, (step, top))?;
        if last {
            time_axis(&root, seconds, y + i32::try_from(ROW)?)?;
        }
    }
    root.present()?;
    Ok(())
}

fn header(root: &Area) -> Drawn {
    let left = i32::try_from(LEFT)?;
    text(root, "Failed requests while every pod is replaced", (left, 30), 26, INK, HPos::Left)?;
    let explanation = "Height of a bar: number of failed requests that were due in that half-second. \
                       All rows share both axes. Lost in flight: executed by a pod that vanished before it answered.";
    text(root, explanation, (left, 58), 15, FAINT, HPos::Left)?;

    let y = 88;
    let bars = [("failed GET", GET, left), ("failed POST", POST, left + 124), ("lost in flight", LOST, left + 258)];
    for (label, colour, x) in bars {
        root.draw(&Rectangle::new([(x, y - 6), (x + 12, y + 6)], colour.filled()))?;
        text(root, label, (x + 20, y), 16, INK, HPos::Left)?;
    }
    let marks = [("pod vanished", EventKind::PodVanished, left + 410), ("IP reused", EventKind::IpReused, left + 552)];
    for (label, kind, x) in marks {
        mark(root, kind, x, (y - 9, y + 9))?;
        text(root, label, (x + 10, y), 16, INK, HPos::Left)?;
    }
    Ok(())
}

fn title(root: &Area, variant: &VariantResult, y: i32) -> Drawn {
    let (left, right) = (i32::try_from(LEFT)?, i32::try_from(WIDTH - RIGHT)?);
    let y = y + 21;
    let name = (FONT, 18).into_font().style(FontStyle::Bold).color(&INK);
    root.draw_text(&variant.name, &name.pos(Pos::new(HPos::Left, VPos::Center)), (left, y))?;
    let failed = variant.failed_get + variant.failed_post;
    let requests = variant.requests;
    let mut parts = if failed == 0 {
        vec![format!("none of {requests} requests failed")]
    } else {
        vec![format!("{} GET and {} POST of {requests} requests failed", variant.failed_get, variant.failed_post)]
    };
    if variant.duplicate_posts > 0 {
        parts.push(format!("{} POST executed twice", variant.duplicate_posts));
    }
    if variant.in_flight_lost > 0 {
        parts.push(format!("{} lost in flight", variant.in_flight_lost));
    }
    let good = failed == 0 && variant.duplicate_posts == 0;
    text(root, &parts.join(" · "), (right, y), 16, if good { REUSED } else { INK }, HPos::Right)
}

fn row(plot: &Area, variant: &VariantResult, seconds: f64, (step, top): (u64, u64)) -> Drawn {
    let mut chart: Chart = ChartBuilder::on(plot)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .margin_right(RIGHT)
        .build_cartesian_2d(0.0..seconds, 0.0..top as f64)?;

    let area = chart.plotting_area().strip_coord_spec();
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (i32::try_from(width)?, i32::try_from(height)?);
    let y_of = |count: u64| height - (f64::from(height) * count as f64 / top as f64).round() as i32;
    for count in (0..=top).step_by(usize::try_from(step)?) {
        let y = y_of(count);
        area.draw(&PathElement::new([(0, y), (width, y)], if count == 0 { FRAME } else { GRID }))?;
        text(plot, &count.to_string(), (i32::try_from(LEFT)? - 8, y), 14, FAINT, HPos::Right)?;
    }
    for event in &variant.events {
        let x = (f64::from(width) * event.t / seconds).round() as i32;
        mark(&area, event.kind, x, (0, height))?;
    }
    let bars = variant.failures_over_time.iter().flat_map(|slice| bars(slice, variant.slice_s));
    chart.draw_series(bars)?;
    Ok(())
}

/// The stacked bars of one slice, in the chart's coordinates.
fn bars(slice: &Slice, width: f64) -> impl Iterator<Item = Rectangle<(f64, f64)>> + use<> {
    let (from, to) = (slice.t + width * 0.08, slice.t + width * 0.92);
    let mut base = 0.0;
    [(slice.failed_get, GET), (slice.failed_post, POST), (slice.in_flight_lost, LOST)]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(move |(count, colour)| {
            let bottom = base;
            base += count as f64;
            Rectangle::new([(from, bottom), (to, base)], colour.filled())
        })
}

/// A vertical mark: solid for "pod vanished", dashed for "IP reused".
fn mark(area: &Area, kind: EventKind, x: i32, (from, to): (i32, i32)) -> Drawn {
    let (colour, dash, gap) = match kind {
        EventKind::PodVanished => (VANISHED, to - from, 0),
        EventKind::IpReused => (REUSED, 4, 3),
    };
    let mut y = from;
    while y < to {
        let end = (y + dash).min(to);
        area.draw(&PathElement::new([(x, y), (x, end)], colour.stroke_width(1)))?;
        y = end + gap.max(1);
    }
    Ok(())
}

fn time_axis(root: &Area, seconds: f64, y: i32) -> Drawn {
    let (left, right) = (f64::from(LEFT), f64::from(WIDTH - RIGHT));
    let step = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600].into_iter().find(|step| seconds / f64::from(*step) <= 13.0);
    let step = step.unwrap_or(3600);
    for tick in (0..=seconds as i32).step_by(usize::try_from(step)?) {
        let x = (left + (right - left) * f64::from(tick) / seconds).round() as i32;
        root.draw(&PathElement::new([(x, y), (x, y + 5)], FRAME))?;
        text(root, &tick.to_string(), (x, y + 15), 14, FAINT, HPos::Center)?;
    }
    let middle = i32::midpoint(left as i32, right as i32);
    text(root, "seconds since the start of the load", (middle, y + 38), 15, FAINT, HPos::Center)
}

fn text(area: &Area, content: &str, at: (i32, i32), size: u32, colour: RGBColor, anchor: HPos) -> Drawn {
    let style = (FONT, size).into_font().color(&colour).pos(Pos::new(anchor, VPos::Center));
    area.draw_text(content, &style, at)?;
    Ok(())
}

fn total(slice: &Slice) -> u64 {
    slice.failed_get + slice.failed_post + slice.in_flight_lost
}

/// Distance of the count axis' ticks, and its end: the first multiple of it that holds `most`.
fn scale(most: u64) -> (u64, u64) {
    let mut decade = 1;
    loop {
        for factor in [1, 2, 5] {
            let step = factor * decade;
            if most <= 3 * step {
                return (step, step * most.div_ceil(step).max(2));
            }
        }
        decade *= 10;
    }
}
