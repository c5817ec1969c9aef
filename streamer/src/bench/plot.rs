//! A sweep as a drawing: what was reached, and what could be.

use std::path::Path;

use plotters::prelude::*;

use super::{Over, Sweep};
use crate::error::{Error, Result};

const SIZE: (u32, u32) = (800, 480);

/// A line of the drawing.
struct Series<'a> {
    name: &'a str,
    color: RGBColor,
    values: Vec<f64>,
}

/// Writes the drawing as SVG.
pub fn plot(sweep: &Sweep, file: &Path) -> Result<()> {
    std::fs::write(file, svg(sweep)?).map_err(Error::io(|| format!("write {}", file.display())))
}

fn svg(sweep: &Sweep) -> Result<String> {
    let values = |of: fn(&super::Report) -> f64| {
        let rates = sweep.points.iter().map(|point| of(&point.report) / 1e9);
        rates.collect::<Vec<f64>>()
    };
    let mut series = vec![
        Series { name: "bound", color: RGBColor(150, 150, 150), values: values(|r| r.bound.rate) },
        Series { name: "reached", color: RGBColor(20, 90, 180), values: values(|r| r.rate) },
    ];
    if sweep.over == Over::Gpus {
        let values = values(|report| report.rate_per_gpu);
        series.push(Series { name: "each GPU", color: RGBColor(200, 90, 20), values });
    }
    let mut text = String::new();
    draw(sweep, &series, &mut text)
        .map_err(|error| Error::Usage(format!("the plot cannot be drawn: {error}")))?;
    Ok(text)
}

fn draw(
    sweep: &Sweep,
    series: &[Series<'_>],
    text: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let names: Vec<&str> = sweep.points.iter().map(|point| point.at.as_str()).collect();
    let last = i32::try_from(names.len().max(2) - 1)?;
    let values = || series.iter().flat_map(|series| &series.values).copied();
    let top = values().filter(|value| value.is_finite()).fold(0.1, f64::max);
    let title = sweep.points.first().map_or("", |point| point.report.scenario.as_str());
    // What changes is on the axis.
    let title = title.split_once(": ").map_or(title, |(direction, _)| direction);
    let along = match sweep.over {
        Over::Ring => "ring",
        Over::Gpus => "GPUs",
    };

    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{title}: throughput over {along}"), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0..last, 0.0..top * 1.1)?;
    let label = |at: &i32| {
        let name = usize::try_from(*at).ok().and_then(|at| names.get(at));
        name.map_or(String::new(), |name| (*name).to_owned())
    };
    chart
        .configure_mesh()
        .x_labels(names.len().max(2))
        .x_label_formatter(&label)
        .x_desc(along)
        .y_desc("GB/s")
        .y_label_formatter(&|value| format!("{value:.1}"))
        .draw()?;
    for Series { name, color, values } in series {
        let points = || (0..).zip(values.iter().copied()).filter(|(_, value)| value.is_finite());
        let color = *color;
        chart
            .draw_series(LineSeries::new(points(), color.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        chart.draw_series(points().map(|at| Circle::new(at, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::sweep::tests::some, *};

    /// Every element is closed in its turn; enough of XML for what is drawn here.
    fn is_well_formed(svg: &str) -> bool {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let Some((tag, text)) = tag.split_once('>') else { return false };
            if text.contains('&') && !text.contains(';') {
                return false;
            }
            let name = tag.split_whitespace().next().unwrap_or_default();
            if let Some(closed) = name.strip_prefix('/') {
                if open.pop() != Some(closed) {
                    return false;
                }
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                open.push(name);
            }
        }
        open.is_empty()
    }

    #[test]
    fn a_drawing_is_well_formed_and_has_every_series_and_point() {
        for (over, names) in [(Over::Ring, &["64K", "1M", "256M"][..]), (Over::Gpus, &["1", "8"])] {
            let sweep = some(over);
            let svg = svg(&sweep).unwrap();
            assert!(is_well_formed(&svg), "{svg}");
            let series = if over == Over::Ring { 2 } else { 3 };
            assert_eq!(svg.matches("<circle").count(), series * sweep.points.len());
            for name in ["bound", "reached", "GB/s"].iter().chain(names) {
                assert!(svg.contains(&format!("\n{name}\n")), "{name}: {svg}");
            }
        }
        assert!(!is_well_formed("<svg><g></svg>"));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = plot(&some(Over::Gpus), Path::new("/nowhere/plot.svg")).unwrap_err();
        assert!(error.report().to_string().contains("/nowhere/plot.svg"));
    }

    #[test]
    fn a_single_point_or_none_is_a_drawing_too() {
        let mut sweep = some(Over::Gpus);
        sweep.points.truncate(1);
        assert!(is_well_formed(&svg(&sweep).unwrap()));
        sweep.points.clear();
        assert!(is_well_formed(&svg(&sweep).unwrap()));
    }
}
