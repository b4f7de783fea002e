package guest

import (
	"strconv"
	"strings"
	"time"
)

// mostSleep is the longest that sleep is taken to mean a time.
const mostSleep = 400 * 24 * time.Hour

// sleepTime reads the arguments of sleep: numbers with s, m, h or d, which add up.
func sleepTime(args []string) (time.Duration, bool) {
	var sum time.Duration
	for _, a := range args {
		unit := time.Second
		if a != "" {
			switch a[len(a)-1] {
			case 's':
				a = a[:len(a)-1]
			case 'm':
				unit, a = time.Minute, a[:len(a)-1]
			case 'h':
				unit, a = time.Hour, a[:len(a)-1]
			case 'd':
				unit, a = 24*time.Hour, a[:len(a)-1]
			}
		}
		n, err := strconv.ParseFloat(a, 64)
		if err != nil || !(n >= 0) || n*float64(unit) > float64(mostSleep) {
			return 0, false // infinity too
		}
		sum += time.Duration(n * float64(unit))
	}
	return sum, len(args) > 0 && sum <= mostSleep
}

// atTime reads the name of a job of at: a letter, five hexadecimal digits of its number, and eight of the minute that it is due.
func atTime(name string) (time.Time, bool) {
	if len(name) != 14 || name[0] == '=' || name[0] == '.' {
		return time.Time{}, false
	}
	n, err := strconv.ParseInt(name[6:], 16, 64)
	return time.Unix(n*60, 0), err == nil
}

// cronNames are the words that stand for five fields.
var cronNames = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// nextCron gives when the first line of a crontab is due after now, within a year; zero where none is.
func nextCron(table string, now time.Time) time.Time {
	var first time.Time
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '@' {
			line = cronNames[strings.Fields(line)[0]]
		}
		r, ok := parseCron(strings.Fields(line))
		if !ok {
			continue // it sets a variable, or is wrong
		}
		if next := r.next(now); !next.IsZero() && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first
}

// rule is when a line of a crontab is due: bits of the values of its fields.
type rule struct {
	minute, hour, day, month, weekday uint64
	either                            bool // days and weekdays are both given: one of them is enough
}

// parseCron reads the first five fields of a line.
func parseCron(f []string) (r rule, ok bool) {
	if len(f) < 5 {
		return r, false
	}
	for i, to := range []struct {
		bits        *uint64
		least, most int
		names       string
	}{
		{&r.minute, 0, 59, ""},
		{&r.hour, 0, 23, ""},
		{&r.day, 1, 31, ""},
		{&r.month, 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"},
		{&r.weekday, 0, 7, "sun mon tue wed thu fri sat"},
	} {
		if *to.bits, ok = cronField(f[i], to.least, to.most, strings.Fields(to.names)); !ok {
			return r, false
		}
	}
	if r.weekday&(1<<7) != 0 {
		r.weekday |= 1 // both are Sunday
	}
	r.either = f[2][0] != '*' && f[4][0] != '*'
	return r, true
}

// cronField reads a list of values, ranges and steps.
func cronField(text string, least, most int, names []string) (bits uint64, ok bool) {
	value := func(s string) (int, bool) {
		for i, name := range names {
			if strings.EqualFold(s, name) {
				return least + i, true
			}
		}
		n, err := strconv.Atoi(s)
		return n, err == nil && n >= least && n <= most
	}
	for part := range strings.SplitSeq(text, ",") {
		span, by, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			var err error
			if step, err = strconv.Atoi(by); err != nil || step < 1 {
				return 0, false
			}
		}
		from, to := least, most
		if span != "*" {
			low, high, ranged := strings.Cut(span, "-")
			if from, ok = value(low); !ok {
				return 0, false
			}
			if ranged {
				if to, ok = value(high); !ok || to < from {
					return 0, false
				}
			} else if !stepped {
				to = from
			}
		}
		for n := from; n <= to; n += step {
			bits |= 1 << n
		}
	}
	return bits, true
}

// next gives the first minute after now at which a rule is due, within a year.
func (r rule) next(now time.Time) time.Time {
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	for range 367 {
		if r.on(day) {
			for h := range 24 {
				if r.hour&(1<<h) == 0 {
					continue
				}
				for m := range 60 {
					at := time.Date(day.Year(), day.Month(), day.Day(), h, m, 0, 0, day.Location())
					if r.minute&(1<<m) != 0 && at.After(now) {
						return at
					}
				}
			}
		}
		day = day.AddDate(0, 0, 1)
	}
	return time.Time{}
}

func (r rule) on(day time.Time) bool {
	if r.month&(1<<day.Month()) == 0 {
		return false
	}
	date, week := r.day&(1<<day.Day()) != 0, r.weekday&(1<<day.Weekday()) != 0
	if r.either {
		return date || week
	}
	return date && week
}
