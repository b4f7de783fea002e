package op

import "context"

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
