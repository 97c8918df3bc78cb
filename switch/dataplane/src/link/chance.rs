//! Random losses and delays of an emulated link.

use fastrand::Rng;
use memlane_model::impairment::{Distribution, GilbertElliott};

/// A random deviation of this distribution, in units of the jitter.
pub fn draw(distribution: Distribution, rng: &mut Rng) -> f64 {
    match distribution {
        Distribution::Uniform => 2.0 * rng.f64() - 1.0,
        Distribution::Normal => normal(rng),
        Distribution::Pareto => pareto(rng),
    }
}

/// Standard normal (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}

/// Pareto of shape 3, moved and scaled to mean 0 and standard deviation 1.
fn pareto(rng: &mut Rng) -> f64 {
    const MEAN: f64 = 1.5;
    // The square root of 3/4.
    const DEVIATION: f64 = 0.866_025_403_784_438_6;
    ((1.0 - rng.f64()).powf(-1.0 / 3.0) - MEAN) / DEVIATION
}

/// Whether `bursts` loses the next frame; `bad` is the state, which changes.
pub fn loses(bursts: &GilbertElliott, bad: &mut bool, rng: &mut Rng) -> bool {
    let change = if *bad { bursts.r } else { bursts.p };
    *bad ^= happens(change, rng);
    happens(if *bad { bursts.bad } else { bursts.good }, rng)
}

/// True with this probability.
#[inline]
pub fn happens(share: f64, rng: &mut Rng) -> bool {
    share > 0.0 && rng.f64() < share
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 200_000;

    fn moments(distribution: Distribution) -> (f64, f64) {
        let mut rng = Rng::with_seed(1);
        let drawn: Vec<f64> = (0..MANY).map(|_| draw(distribution, &mut rng)).collect();
        let mean = drawn.iter().sum::<f64>() / MANY as f64;
        (mean, (drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / MANY as f64).sqrt())
    }

    #[test]
    fn distributions_have_the_mean_and_the_width_that_they_promise() {
        for (distribution, width) in [(Distribution::Uniform, 1.0 / 3.0_f64.sqrt()), (Distribution::Normal, 1.0)] {
            let (mean, deviation) = moments(distribution);
            assert!(mean.abs() < 0.01 && (deviation - width).abs() < 0.01, "{distribution:?}: {mean} {deviation}");
        }
        // The variance of a Pareto of shape 3 has itself no variance: it converges slowly.
        let (mean, deviation) = moments(Distribution::Pareto);
        assert!(mean.abs() < 0.02 && (deviation - 1.0).abs() < 0.2, "{mean} {deviation}");
    }

    #[test]
    fn bursts_have_the_loss_and_the_length_that_they_promise() {
        let bursts = GilbertElliott { p: 0.01, r: 0.25, bad: 1.0, good: 0.0 };
        let (mut rng, mut bad) = (Rng::with_seed(2), false);
        let lost: Vec<bool> = (0..MANY).map(|_| loses(&bursts, &mut bad, &mut rng)).collect();
        let share = lost.iter().filter(|&&lost| lost).count() as f64 / MANY as f64;
        let begun = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        assert!((share - 0.01 / 0.26).abs() < 0.003, "{share}");
        assert!((share * MANY as f64 / begun - 4.0).abs() < 0.2, "mean length of a burst is 1 / r");
    }
}
