//! A figure as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Row, Section};
use crate::papers::Chart;
use crate::system::System;

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 380;

/// The colours of Okabe and Ito, which nearly everyone can distinguish; then lighter ones.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0xF0, 0xE4, 0x42),
    RGBColor(0x55, 0x55, 0x55),
    RGBColor(0x9E, 0xD9, 0xC2),
    RGBColor(0xBB, 0xBB, 0xBB),
];

/// For a legend beside the chart, and so that the charts of a report agree.
pub fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The SVG element. `None` if nothing was measured.
pub fn svg(section: &Section, chart: Chart) -> Option<String> {
    let groups = groups(section, chart);
    if groups.iter().all(|g| g.bars.is_empty()) {
        return None;
    }
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        let drawn = match chart {
            Chart::RatesOver(what) => lines(&area, section, &groups, what),
            Chart::Latencies => bars(&area, &groups, "microseconds", true),
            Chart::Times => bars(&area, &groups, "ms", true),
            Chart::Rates => bars(&area, &groups, "a second", false),
        };
        // Writing into a string does not fail; ranges that are not numbers were left out.
        drawn.and_then(|()| Ok(area.present()?)).expect("a chart in memory");
    }
    Some(text)
}

/// Bars side by side: a value for each system, by its index in the list.
struct Group {
    label: String,
    bars: Vec<(usize, f64)>,
}

fn groups(section: &Section, chart: Chart) -> Vec<Group> {
    let of = |label: &str, value: &dyn Fn(&System) -> Option<f64>| Group {
        label: label.to_owned(),
        bars: section
            .systems
            .iter()
            .enumerate()
            .filter_map(|(index, system)| Some((index, value(system).filter(|v| v.is_finite())?)))
            .collect(),
    };
    let by_phase = |value: &dyn Fn(&Row, &System) -> Option<f64>| -> Vec<Group> {
        section.rows.iter().map(|row| of(&row.phase, &|system| value(row, system))).collect()
    };
    match chart {
        Chart::Rates | Chart::RatesOver(_) => by_phase(&|row, system| row.rate(system.name)),
        Chart::Times => by_phase(&|row, system| Some(1000.0 / row.rate(system.name)?)),
        Chart::Latencies => {
            let Some(row) = section.rows.first() else { return Vec::new() };
            vec![
                of("median", &|s| row.latency(s.name, |l| l.median)),
                of("mean", &|s| row.latency(s.name, |l| l.mean)),
                of("99th", &|s| row.latency(s.name, |l| l.p99)),
                of("99.99th", &|s| row.latency(s.name, |l| l.p9999)),
                of("worst", &|s| row.latency(s.name, |l| l.worst)),
            ]
        }
    }
}

fn bars(area: &Area<'_>, groups: &[Group], unit: &str, logarithmic: bool) -> Drawn {
    let scaled = |value: f64| if logarithmic { value.log10() } else { value };
    let values = || groups.iter().flat_map(|g| g.bars.iter().map(|b| scaled(b.1)));
    let most = values().fold(f64::NEG_INFINITY, f64::max);
    // A logarithmic scale begins at half of the smallest value, so that its bar is visible.
    let floor = if logarithmic { values().fold(f64::INFINITY, f64::min) - 0.3 } else { 0.0 };
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).x_label_area_size(56).y_label_area_size(70);
    let top = floor + (most - floor) * 1.05;
    let mut chart = builder.build_cartesian_2d(0.0..groups.len() as f64, floor..top)?;
    let number = |y: &f64| short(if logarithmic { 10f64.powf(*y) } else { *y });
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_label_formatter(&number).y_desc(unit).draw()?;
    chart.draw_series(groups.iter().enumerate().flat_map(|(place, group)| {
        let width = 0.86 / group.bars.len().max(1) as f64;
        group.bars.iter().enumerate().map(move |(nth, (system, value))| {
            let left = place as f64 + 0.07 + nth as f64 * width;
            Rectangle::new([(left, floor), (left + width, scaled(*value))], colour(*system).filled())
        })
    }))?;
    for (place, group) in groups.iter().enumerate() {
        let (x, y) = chart.plotting_area().map_coordinate(&(place as f64 + 0.07, floor));
        for (nth, part) in group.label.split(", ").enumerate() {
            let at = (x, y + 8 + 14 * nth as i32);
            area.draw(&Text::new(part.to_owned(), at, ("sans-serif", 12)))?;
        }
    }
    Ok(())
}

/// A number with about two significant digits.
fn short(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Over the number before `what` in the label of a group.
fn lines(area: &Area<'_>, section: &Section, groups: &[Group], what: &str) -> Drawn {
    let number = |label: &str| label.split([' ', ',']).find_map(|word| word.parse::<f64>().ok());
    let points: Vec<(f64, &Group)> = groups.iter().filter_map(|g| Some((number(&g.label)?, g))).collect();
    let widest = points.iter().map(|p| p.0).fold(1.0, f64::max);
    let most = groups.iter().flat_map(|g| g.bars.iter().map(|b| b.1)).fold(0.0, f64::max);
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).x_label_area_size(44).y_label_area_size(70);
    let mut chart = builder.build_cartesian_2d(0.0..widest * 1.02, 0.0..most * 1.05)?;
    chart.configure_mesh().x_desc(what).y_desc("a second").draw()?;
    for index in 0..section.systems.len() {
        let at: Vec<(f64, f64)> = points
            .iter()
            .filter_map(|(x, group)| Some((*x, group.bars.iter().find(|b| b.0 == index)?.1)))
            .collect();
        chart.draw_series(LineSeries::new(at.iter().copied(), colour(index).stroke_width(2)))?;
        chart.draw_series(at.iter().map(|point| Circle::new(*point, 3, colour(index).filled())))?;
    }
    Ok(())
}
