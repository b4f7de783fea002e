package docs

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// How much a term counts by where it stands, and the two constants of BM25.
const (
	inPage    = 3.0 // the page's title, id and summary
	inHeading = 4.0
	inText    = 1.0
	byAlias   = 0.35
	k1        = 1.2
	b         = 0.6
	// The generated reference repeats the words of every operation; pages that explain come first where both fit.
	reference = 0.8
)

// part is one section in the index.
type part struct {
	page    *Page
	section Section
	terms   map[string]float64 // how often each occurs, weighted
	length  float64
	bonus   float64
}

// index is what is searched.
type index struct {
	parts   []part
	found   map[string]int // in how many parts each term occurs
	average float64
}

func newIndex(pages []*Page) *index {
	x := &index{found: map[string]int{}}
	for _, p := range pages {
		if p.ID == Index {
			continue // it names everything and says nothing
		}
		about := words(p.Title + " " + strings.ReplaceAll(p.ID, "/", " ") + " " + p.Summary)
		generated := strings.HasPrefix(p.ID, "reference")
		for _, s := range p.Sections {
			if generated && s.Level > 2 {
				continue // the parts of one operation are one
			}
			if generated && s.Level == 2 {
				s.End = s.Whole
				if example := strings.Index(p.Text[s.Start:s.End], "\n### Example"); example > 0 {
					s.End = s.Start + example
				}
			}
			pt := part{page: p, section: s, terms: map[string]float64{}, bonus: 1}
			if generated {
				pt.bonus = reference
			}
			pt.add(about, inPage/2)
			pt.add(words(s.Title), inHeading)
			pt.add(words(p.Text[s.Start:s.End]), inText)
			if s.Anchor == "" {
				pt.add(about, inPage/2)
			}
			for t := range pt.terms {
				x.found[t]++
			}
			x.average += pt.length
			x.parts = append(x.parts, pt)
		}
	}
	x.average /= float64(max(len(x.parts), 1))
	return x
}

func (p *part) add(terms []string, weight float64) {
	for _, t := range terms {
		p.terms[t] += weight
		p.length += min(weight, 1)
	}
}

// Hit is a section that fits a query.
type Hit struct {
	Page    *Page
	Section Section
	Score   float64
	Excerpt string // a line of its text
}

// mostOfOne is how many sections of one page a result has at most.
const mostOfOne = 2

// Search gives the sections that fit a question or keywords best, the best first, at most limit of them. It is empty where no word occurs anywhere.
func (l *Library) Search(query string, limit int) []Hit {
	x := l.search()
	asked := terms(query)
	var hits []Hit
	for _, p := range x.parts {
		if score := x.score(&p, asked); score > 0 {
			hits = append(hits, Hit{Page: p.page, Section: p.section, Score: score})
		}
	}
	slices.SortStableFunc(hits, func(a, b Hit) int { return cmp.Compare(b.Score, a.Score) })
	count := map[*Page]int{}
	kept := hits[:0]
	for _, h := range hits {
		if count[h.Page]++; count[h.Page] <= mostOfOne {
			kept = append(kept, h)
		}
		if len(kept) == limit {
			break
		}
	}
	for i := range kept {
		kept[i].Excerpt = excerpt(kept[i].Page.Text[kept[i].Section.Start:kept[i].Section.End], asked)
	}
	return kept
}

// terms weighs what is asked for: the words of the query, and less what the pages call the same.
func terms(query string) map[string]float64 {
	asked := map[string]float64{}
	for _, w := range words(query) {
		asked[w] = 1
	}
	for w := range strings.FieldsSeq(strings.ToLower(query)) {
		for _, t := range words(aliases[strings.Trim(w, ".,;:?!\"'()")]) {
			asked[t] = max(asked[t], byAlias)
		}
	}
	return asked
}

func (x *index) score(p *part, asked map[string]float64) float64 {
	sum, met := 0.0, 0.0
	all := 0.0
	for t, weight := range asked {
		all += weight
		tf := p.terms[t]
		if tf == 0 {
			continue
		}
		met += weight
		n := float64(x.found[t])
		idf := math.Log(1 + (float64(len(x.parts))-n+0.5)/(n+0.5))
		sum += weight * idf * tf * (k1 + 1) / (tf + k1*(1-b+b*p.length/x.average))
	}
	if all == 0 {
		return 0
	}
	return sum * p.bonus * (0.5 + 0.5*met/all) // one that has all the words is better than one that has one of them often
}

// excerpt is the line of a text that has most of what was asked for, the first such.
func excerpt(text string, asked map[string]float64) string {
	best, most := "", -1.0
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || fenceOf(line) != "" || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| | |") || (i == 0 && strings.HasPrefix(line, "#")) {
			continue
		}
		seen := map[string]bool{}
		sum := 0.0
		for _, t := range words(line) {
			if !seen[t] {
				sum += asked[t]
				seen[t] = true
			}
		}
		if sum > most {
			best, most = line, sum
		}
	}
	return clip(Plain(strings.Trim(best, "|-# ")), 240)
}
