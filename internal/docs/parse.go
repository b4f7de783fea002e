package docs

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// idOf makes a page's id of its file.
func idOf(file string) string {
	id := strings.TrimSuffix(file, ".md")
	switch {
	case id == "README" || id == "":
		return Index
	case path.Base(id) == "README":
		return path.Dir(id)
	}
	return id
}

// parse divides a page at its headings. A generated page's first line, a comment, is no part of it.
func parse(file, text string) *Page {
	if rest, ok := strings.CutPrefix(text, "<!--"); ok {
		if _, after, found := strings.Cut(rest, "-->"); found {
			text = strings.TrimLeft(after, "\n")
		}
	}
	p := &Page{ID: idOf(file), File: file, Text: text}
	var anchors Anchors
	fence := ""
	at := 0
	for line := range strings.Lines(text) {
		start := at
		at += len(line)
		line = strings.TrimRight(line, "\r\n")
		if mark := fenceOf(line); fence != "" {
			if mark != "" && strings.HasPrefix(mark, fence) && strings.TrimSpace(line) == mark {
				fence = ""
			}
			continue
		} else if mark != "" {
			fence = mark
			continue
		}
		level, title := heading(line)
		if level == 0 {
			continue
		}
		s := Section{Title: Plain(title), Level: level, Start: start}
		if anchor := anchors.Next(s.Title); len(p.Sections) > 0 {
			s.Anchor = anchor
		} else {
			p.Title = s.Title
		}
		p.Sections = append(p.Sections, s)
	}
	for i := range p.Sections {
		p.Sections[i].End, p.Sections[i].Whole = len(text), len(text)
		if i+1 < len(p.Sections) {
			p.Sections[i].End = p.Sections[i+1].Start
		}
		for _, later := range p.Sections[i+1:] {
			if later.Level <= p.Sections[i].Level {
				p.Sections[i].Whole = later.Start
				break
			}
		}
	}
	return p
}

// fenceOf gives the mark that opens or closes a block of code.
func fenceOf(line string) string {
	line = strings.TrimLeft(line, " ")
	for _, c := range []string{"`", "~"} {
		if n := len(line) - len(strings.TrimLeft(line, c)); n >= 3 {
			return strings.Repeat(c, n)
		}
	}
	return ""
}

func heading(line string) (level int, title string) {
	rest := strings.TrimLeft(line, "#")
	level = len(line) - len(rest)
	if level == 0 || level > 6 || !strings.HasPrefix(rest, " ") {
		return 0, ""
	}
	return level, strings.TrimSpace(strings.TrimRight(rest, "# "))
}

var (
	link  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	entry = regexp.MustCompile(`\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)`)
)

// Plain takes the marks of Markdown out of a line.
func Plain(s string) string {
	s = link.ReplaceAllString(s, "$1")
	return strings.NewReplacer("`", "", "**", "", "\\", "").Replace(s)
}

// Anchors gives the headings of one page their anchors. The zero value begins a page.
type Anchors struct{ seen map[string]int }

// Next gives the next heading's anchor: one that occurs again gets a number.
func (a *Anchors) Next(title string) string {
	if a.seen == nil {
		a.seen = map[string]int{}
	}
	base := Anchor(title)
	n := a.seen[base]
	a.seen[base]++
	if n == 0 {
		return base
	}
	return base + "-" + strconv.Itoa(n)
}

// Anchor makes the anchor of a heading's text: letters and digits in lower case, spaces as hyphens, nothing else.
func Anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, strings.TrimSpace(title))
}

// indexed is a link in the list of an index.
type indexed struct{ id, summary, group string }

// entries reads the index: below each heading, list items that begin with a link and go on with what the page says.
func entries(text string) []indexed {
	var all []indexed
	group := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if level, title := heading(line); level == 2 {
			group = Plain(title)
		}
		item, isItem := strings.CutPrefix(line, "- ")
		m := entry.FindStringSubmatchIndex(item)
		if !isItem || m == nil || m[0] != 0 {
			continue
		}
		target := strings.Trim(item[m[4]:m[5]], "/")
		if strings.Contains(target, "://") {
			continue
		}
		all = append(all, indexed{id: idOf(target), summary: Plain(strings.TrimLeft(item[m[1]:], ":, ")), group: group})
	}
	return all
}

// firstSentence is the beginning of a page's first paragraph.
func firstSentence(p *Page) string {
	for line := range strings.Lines(p.Text) {
		line = Plain(strings.TrimSpace(line))
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "- ") || fenceOf(line) != "" {
			continue
		}
		if end := strings.Index(line, ". "); end > 0 {
			line = line[:end+1]
		}
		return clip(line, 200)
	}
	return ""
}

// clip shortens a line to a number of characters, at a space.
func clip(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	s = string(r[:most])
	if cut := strings.LastIndexByte(s, ' '); cut > most/2 {
		s = s[:cut]
	}
	return strings.TrimRight(s, " ,;:") + " …"
}
