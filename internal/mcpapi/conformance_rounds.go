//go:build conformance

package mcpapi

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// question is what a tool asks the client before it can go on.
type question struct {
	key, capability, request string
}

func asks(key, message, field, kind string) question {
	return question{key, "elicitation", `{"method":"elicitation/create","params":{"message":"` + message + `","requestedSchema":{"type":"object","properties":{"` +
		field + `":{"type":"` + kind + `"}},"required":["` + field + `"]}}}`}
}

var (
	askName    = asks("user_name", "What is your name?", "name", "string")
	askConfirm = asks("confirm", "Please confirm", "ok", "boolean")
	askRoots   = question{"client_roots", "roots", `{"method":"roots/list","params":{}}`}
	askCapital = question{"capital_question", "sampling", sample("What is the capital of France?", "100")}
	askGreet   = question{"greeting", "sampling", sample("Generate a greeting", "50")}
)

func sample(text, most string) string {
	return `{"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"` + text + `"}}],"maxTokens":` + most + `}}`
}

type fixtureRound struct {
	name string
	call func(context.Context, *exchange) ([]byte, *rpcError)
}

func rounds() []fixtureRound {
	const prefix = "test_input_required_result_"
	one := func(name string, sealed bool, questions ...question) fixtureRound {
		return fixtureRound{prefix + name, func(_ context.Context, x *exchange) ([]byte, *rpcError) {
			return x.ask(sealed, questions, func(answers members) ([]byte, *rpcError) {
				return x.done(textOf("state-ok " + string(encode(answers))))
			})
		}}
	}
	return []fixtureRound{
		{prefix + "elicitation", func(_ context.Context, x *exchange) ([]byte, *rpcError) {
			return x.ask(false, []question{askName}, func(answers members) ([]byte, *rpcError) {
				answer, _ := answers.object("user_name")
				content, _ := answer.object("content")
				name, ok := content.text("name")
				if !ok {
					return x.need(nil, []question{askName})
				}
				return x.done(textOf("Hello, " + name + "!"))
			})
		}},
		one("sampling", false, askCapital),
		one("list_roots", false, askRoots),
		one("request_state", true, askConfirm),
		one("tampered_state", true, askConfirm),
		one("multiple_inputs", true, askName, askGreet, askRoots),
		{prefix + "multi_round", multiRound},
		{prefix + "capabilities", func(_ context.Context, x *exchange) ([]byte, *rpcError) {
			var can []question
			for _, q := range []question{askName, askGreet, askRoots} {
				if x.clientHas(q.capability) {
					can = append(can, q)
				}
			}
			return x.need(nil, can)
		}},
	}
}

// ask goes on once every question is answered under the state that was given out with it.
func (x *exchange) ask(sealed bool, questions []question, then func(members) ([]byte, *rpcError)) ([]byte, *rpcError) {
	state := ""
	if sealed {
		state = "asked"
	}
	answers, _ := x.msg.params.object("inputResponses")
	given, stated := x.msg.params.text("requestState")
	if stated {
		opened, ok := open(given)
		if !ok || opened != state {
			return nil, problem(http.StatusBadRequest, codeInvalidParams, "requestState is not one that was given out")
		}
	}
	for _, q := range questions {
		if answer, ok := answers.object(q.key); !ok || answer == nil || sealed && !stated {
			return x.need(&state, questions)
		}
	}
	return then(answers)
}

// need is a result that asks for input.
func (x *exchange) need(state *string, questions []question) ([]byte, *rpcError) {
	requests := map[string]json.RawMessage{}
	for _, q := range questions {
		requests[q.key] = json.RawMessage(q.request)
	}
	b := append([]byte(`"resultType":"input_required","inputRequests":`), encode(requests)...)
	if state != nil && *state != "" {
		b = append(append(b, `,"requestState":`...), encode(seal(*state))...)
	}
	return b, nil
}

func multiRound(_ context.Context, x *exchange) ([]byte, *rpcError) {
	first, second := asks("step1", "Step 1: What is your name?", "name", "string"), asks("step2", "Step 2: What is your favorite color?", "color", "string")
	answers, _ := x.msg.params.object("inputResponses")
	given, _ := x.msg.params.text("requestState")
	one, two := "round 1", "round 2"
	switch state, ok := open(given); {
	case given == "":
		return x.need(&one, []question{first})
	case !ok:
		return nil, problem(http.StatusBadRequest, codeInvalidParams, "requestState is not one that was given out")
	case state == one && answers["step1"] != nil:
		return x.need(&two, []question{second})
	case state == two && answers["step2"] != nil:
		return x.done(textOf("all rounds are done"))
	case state == two:
		return x.need(&two, []question{second})
	default:
		return x.need(&one, []question{first})
	}
}

var sealKey = func() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}()

func mark(state string) string {
	m := hmac.New(sha256.New, sealKey)
	m.Write([]byte(state))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func seal(state string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(state)) + "." + mark(state)
}

func open(sealed string) (string, bool) {
	text, tag, _ := strings.Cut(sealed, ".")
	state, err := base64.RawURLEncoding.DecodeString(text)
	return string(state), err == nil && hmac.Equal([]byte(tag), []byte(mark(string(state))))
}

func pixel() []byte {
	b, err := base64.StdEncoding.DecodeString(redPixel)
	if err != nil {
		panic(err)
	}
	return b
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
