// SPDX-License-Identifier: Apache-2.0

package tune

import "math"

// errorRate is the greatest chance that a whole trial calls any share faster that is not. It is divided by the number of
// comparisons (Bonferroni).
const errorRate = 0.005

// minGain is the smallest gain that counts. A smaller one is not worth a flag.
const minGain = 0.01

// proof is the test of a trial.
//
// It is Student's t-test for pairs, one-sided. A pair is the two rates of one round. The test takes the logarithm of
// their quotient, so that a gain in percent counts. It assumes that the pairs are independent and that their noise is
// normal. A drift of the machine does no harm, because each round has an order of its own.
//
// The noise of a pair of shares is not that of all: on H200s, n-body had 2.4 % without a cap and 0.01 % with one. So
// each pair is judged by its own noise. But few rounds may look quiet by chance, above all if a rate has few digits.
// So the noise counts as not less than the middle one of all pairs.
type proof struct {
	comparisons int
	noise       float64 // the median of the standard deviations of all shares' gains over the site's
}

// proof returns the test of a trial, which compares each share with the site's.
func (r report) proof() proof {
	p, site := proof{comparisons: max(len(r.Rules)-1, 1)}, r.siteRow()
	var all []float64
	for _, w := range r.Rules {
		if w.Rule != r.Site && w.Median > 0 && site.Median > 0 {
			_, deviation := spread(w.gains(site))
			all = append(all, deviation)
		}
	}
	p.noise = median(all)
	return p
}

// faster reports whether a row is proved to be faster than another row.
func (p proof) faster(w, other row) bool {
	gains := w.gains(other)
	if len(gains) < 2 {
		return false
	}
	mean, deviation := spread(gains)
	if mean < math.Log1p(minGain) {
		return false
	}
	t := mean / max(deviation, p.noise) * math.Sqrt(float64(len(gains))) // +Inf without noise
	return tail(t, len(gains)-1) <= errorRate/float64(p.comparisons)
}

// spread returns the mean and the standard deviation. The latter is 0 for less than two values.
func spread(values []float64) (mean, deviation float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(deviation / max(n-1, 1))
}

// gains returns the logarithms of the quotients of the rates, by round. A round without both rates is left out.
func (w row) gains(other row) (all []float64) {
	for i := range min(len(w.Rates), len(other.Rates)) {
		if w.Rates[i] > 0 && other.Rates[i] > 0 {
			all = append(all, math.Log(w.Rates[i]/other.Rates[i]))
		}
	}
	return all
}

// tail returns the chance that Student's t with this number of degrees of freedom is above t. The sums are exact for
// whole degrees (Abramowitz and Stegun, 26.7.3 and 26.7.4).
func tail(t float64, degrees int) float64 {
	angle := math.Atan(t / math.Sqrt(float64(degrees)))
	sin, cos := math.Sincos(angle)
	odd := degrees % 2
	sum, term := 0.0, 1.0
	if odd == 1 {
		term = cos
	}
	for k := odd; k <= degrees-2; k += 2 {
		if k >= 2 {
			term *= cos * cos * float64(k-1) / float64(k)
		}
		sum += term
	}
	inner := sin * sum
	if odd == 1 {
		inner = (angle + sin*sum) * 2 / math.Pi
	}
	return (1 - inner) / 2
}
