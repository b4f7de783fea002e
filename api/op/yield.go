package op

import (
	"context"
	"time"
)

type yielder struct{}

// WithYield puts into the context how a call gives its place among its caller's calls in flight to another one while it waits.
func WithYield(ctx context.Context, yield func() (back func())) context.Context {
	return context.WithValue(ctx, yielder{}, yield)
}

// Yield gives the call's place to another call of the same caller for as long as this one only waits. back takes it again and must be called.
func Yield(ctx context.Context) (back func()) {
	if yield, ok := ctx.Value(yielder{}).(func() func()); ok {
		return yield()
	}
	return func() {}
}

// answerTime is what is left of a call's time to answer in.
const answerTime = 2 * time.Second

// Remaining is how much of a call's time may go into waiting, at most the given time, leaving some to answer in.
func Remaining(ctx context.Context, most time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return most
	}
	return max(0, min(most, time.Until(deadline)-answerTime))
}
