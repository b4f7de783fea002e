package httpapi

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/berthrun/berth/api/op"
)

// addStreams adds the routes of streams. One that shares its route with an operation is told with it: an argument and one more form of the answer.
func addStreams(paths object, streams []op.StreamInfo) {
	for _, i := range streams {
		path, method := strings.ReplaceAll(i.Path, "...}", "}"), strings.ToLower(i.Method)
		if paths[path] == nil {
			paths[path] = object{}
		}
		if i.When == "" {
			paths[path].(object)[method] = streamRoute(i)
			continue
		}
		shared := paths[path].(object)[method].(object)
		list, _ := shared["parameters"].([]any)
		shared["parameters"] = append(append(list, object{
			"name": i.When, "in": "query", "required": false, "schema": object{"type": "boolean"}, "description": i.Doc,
		}), headers(i)...)
		answer := shared["responses"].(object)[strconv.Itoa(http.StatusOK)].(object)
		answer["content"].(object)[i.Media] = media(i)
		shared["x-berth"].(object)["stream"] = streamWords(i)
	}
}

func streamWords(i op.StreamInfo) object {
	words := object{"name": i.Name, "kind": i.Kind}
	if len(i.Messages) == 0 {
		return words
	}
	all := []any{}
	for _, m := range i.Messages {
		one := object{"name": m.Name, "description": m.Doc}
		if m.Data != nil {
			one["schema"] = object{"$ref": "#/components/schemas/" + messageName(i, m)}
		}
		all = append(all, one)
	}
	words["messages"] = all
	return words
}

func messageName(i op.StreamInfo, m op.MessageInfo) string {
	return typeName(i.Name) + strings.ToUpper(m.Name[:1]) + m.Name[1:]
}

// media is what goes through: text of events, or bytes.
func media(i op.StreamInfo) object {
	if i.Kind == op.Events {
		return object{"schema": object{"type": "string"}}
	}
	return object{"schema": object{"type": "string", "format": "binary"}}
}

func headers(i op.StreamInfo) (list []any) {
	for _, h := range i.Headers {
		list = append(list, object{"name": h.Name, "in": "header", "required": false, "schema": object{"type": "string"}, "description": h.Doc})
	}
	return list
}

func streamRoute(i op.StreamInfo) object {
	in := streamInput(i)
	answer := object{"description": "Done.", "headers": idHeader()}
	switch {
	case i.Out != nil:
		answer["content"] = content(object{"$ref": "#/components/schemas/" + typeName(i.Name) + "Output"})
	case i.Media != "":
		answer["content"] = object{i.Media: media(i)}
	}
	all := object{strconv.Itoa(i.Status): answer}
	if i.Kind == op.Download {
		all["206"] = object{"description": "A part.", "headers": idHeader(), "content": object{i.Media: media(i)}}
		all["304"] = object{"description": "The caller has it already.", "headers": idHeader()}
		all["416"] = object{"$ref": "#/components/responses/416"}
	}
	if i.Kind == op.Download || i.Kind == op.Upload {
		all["412"] = object{"$ref": "#/components/responses/412"}
	}
	for _, status := range errorStatuses() {
		if status != http.StatusRequestEntityTooLarge && status != http.StatusUnsupportedMediaType {
			all[strconv.Itoa(status)] = object{"$ref": "#/components/responses/" + strconv.Itoa(status)}
		}
	}
	o := object{
		"operationId": i.Name, "summary": i.Title, "description": i.Doc, "tags": []string{i.Toolset}, "responses": all,
		"x-berth": object{"action": i.Action, "hints": i.Hints.Words(), "stream": streamWords(i)},
	}
	if p := append(parameters(i.Info, in), headers(i)...); len(p) > 0 {
		o["parameters"] = p
	}
	if i.Kind == op.Upload {
		o["requestBody"] = object{"required": false, "content": object{i.Media: media(i)}}
	}
	return o
}

func addStreamSchemas(all object, streams []op.StreamInfo) {
	for _, i := range streams {
		if i.Out != nil {
			all[typeName(i.Name)+"Output"] = i.Out
		}
		for _, m := range i.Messages {
			if m.Data != nil {
				all[messageName(i, m)] = m.Data
			}
		}
	}
}
