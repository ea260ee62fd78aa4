// The official Go client of RocketMQ 5 at a proxy, for tests: main ENDPOINTS COUNT plays all its flows at once.
//
// The topics NormalT, FifoT, DelayT, TranT and PriorityT are there, and the group go_fifo consumes in order. What other
// clients have sent is passed over. The last line is JSON: what was seen in each flow, and "ok".
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	wait      = 60 * time.Second // no flow takes that long where all is well
	invisible = 30 * time.Second
	delay     = 4 * time.Second
	own       = "go "
)

var endpoints string

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config(group string) *client.Config {
	return &client.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func startedProducer(topic string, more ...client.ProducerOption) client.Producer {
	producer, err := client.NewProducer(config(""), append(more, client.WithTopics(topic))...)
	check(err)
	check(producer.Start())
	return producer
}

func message(topic, body string) *client.Message {
	return &client.Message{Topic: topic, Body: []byte(body)}
}

func send(producer client.Producer, sent *client.Message) *client.SendReceipt {
	receipts, err := producer.Send(context.Background(), sent)
	check(err)
	return receipts[0]
}

func names(kind string, count int) []string {
	made := make([]string, count)
	for i := range made {
		made[i] = own + kind + strconv.Itoa(i)
	}
	return made
}

func without(found []string, wanted string) []string {
	return slices.DeleteFunc(found, func(one string) bool { return one == wanted })
}

// Seen are the bodies that came to a consumer, in their order.
type Seen struct {
	lock   sync.Mutex
	bodies []string
}

func (s *Seen) add(body string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.bodies = append(s.bodies, body)
}

func (s *Seen) all() []string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return slices.Clone(s.bodies)
}

// await waits for so many bodies, and a little longer for those that must not come.
func (s *Seen) await(count int, more time.Duration) []string {
	for end := time.Now().Add(wait); len(s.all()) < count && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(more)
	return s.all()
}

// pushed starts a push consumer; take tells whether a message was consumed.
func pushed(topic, group string, take func(*client.MessageView) bool) {
	listener := &client.FuncMessageListener{Consume: func(view *client.MessageView) client.ConsumerResult {
		if !strings.HasPrefix(string(view.GetBody()), own) || take(view) {
			return client.SUCCESS
		}
		return client.FAILURE
	}}
	consumer, err := client.NewPushConsumer(config(group), client.WithPushAwaitDuration(5*time.Second),
		client.WithPushSubscriptionExpressions(map[string]*client.FilterExpression{topic: client.SUB_ALL}),
		client.WithPushMessageListener(listener), client.WithPushConsumptionThreadCount(4),
		client.WithPushMaxCacheMessageCount(1024))
	check(err)
	check(consumer.Start())
}

// simple: sends, in turn and asynchronously; a consumer by tag gets each once, but for one that it lets come again.
func simple(count int) (any, bool) {
	producer := startedProducer("NormalT")
	bodies := names("n", count)
	var under sync.WaitGroup
	for i, body := range bodies {
		sent := message("NormalT", body)
		sent.SetTag("go")
		sent.SetKeys("k-" + strconv.Itoa(i))
		sent.AddProperty("p", "v")
		if i%2 == 0 {
			send(producer, sent)
			continue
		}
		under.Add(1)
		producer.SendAsync(context.Background(), sent, func(_ context.Context, _ []*client.SendReceipt, err error) {
			check(err)
			under.Done()
		})
	}
	under.Wait()
	consumer, err := client.NewSimpleConsumer(config("go_simple"), client.WithSimpleAwaitDuration(3*time.Second),
		client.WithSimpleSubscriptionExpressions(map[string]*client.FilterExpression{
			"NormalT": client.NewFilterExpression("go"),
		}))
	check(err)
	check(consumer.Start())
	var found []string
	again := false
	for end := time.Now().Add(wait); len(found) < count+1 && time.Now().Before(end); {
		views, _ := consumer.Receive(context.Background(), 16, invisible) // nothing there is an error of its
		for _, view := range views {
			found = append(found, string(view.GetBody()))
			if !again && view.GetProperties()["p"] == "v" && view.GetKeys()[0] == "k-0" {
				again = true
				check(consumer.ChangeInvisibleDuration(view, 10*time.Second))
				continue
			}
			check(consumer.Ack(context.Background(), view))
		}
	}
	slices.Sort(found)
	wanted := append(bodies, bodies[0])
	slices.Sort(wanted)
	return found, slices.Equal(found, wanted)
}

// push: a message that was not consumed comes again, as the second attempt.
func push(count int) (any, bool) {
	seen := &Seen{}
	pushed("NormalT", "go_push", func(view *client.MessageView) bool {
		seen.add(fmt.Sprintf("%s %d", view.GetBody(), view.GetDeliveryAttempt()))
		return !(string(view.GetBody()) == own+"n1" && view.GetDeliveryAttempt() == 1)
	})
	found := seen.await(count+1, 0)
	slices.Sort(found)
	var wanted []string
	for _, body := range append(names("n", count), own+"n1") {
		wanted = append(wanted, body+" 1")
	}
	slices.Sort(wanted)
	wanted[slices.Index(wanted, own+"n1 1")] = own + "n1 2"
	slices.Sort(wanted)
	return found, slices.Equal(found, wanted)
}

// fifo: the messages of a group come in their order.
func fifo(count int) (any, bool) {
	producer := startedProducer("FifoT")
	for i := range count {
		for _, group := range []string{"a", "b"} {
			sent := message("FifoT", own+group+strconv.Itoa(i))
			sent.SetMessageGroup(group)
			send(producer, sent)
		}
	}
	seen := &Seen{}
	pushed("FifoT", "go_fifo", func(view *client.MessageView) bool {
		seen.add(string(view.GetBody()))
		return true
	})
	found := seen.await(2*count, 0)
	good := len(found) == 2*count
	for _, group := range []string{"a", "b"} {
		mine := slices.DeleteFunc(slices.Clone(found), func(body string) bool {
			return !strings.HasPrefix(body, own+group)
		})
		good = good && slices.Equal(mine, names(group, count))
	}
	return found, good
}

// delayed: a message comes not before its time, and one that was recalled never.
func delayed(int) (any, bool) {
	producer := startedProducer("DelayT")
	due := time.Now().Add(delay)
	kept, recalled := message("DelayT", own+"later"), message("DelayT", own+"recalled")
	kept.SetDelayTimestamp(due)
	recalled.SetDelayTimestamp(due.Add(time.Second))
	send(producer, kept)
	_, err := producer.Recall(context.Background(), "DelayT", send(producer, recalled).RecallHandle)
	check(err)
	seen := &Seen{}
	early := false
	pushed("DelayT", "go_delay", func(view *client.MessageView) bool {
		early = early || time.Now().Before(due.Add(-time.Second)) // times are whole seconds there
		seen.add(string(view.GetBody()))
		return true
	})
	found := seen.await(1, 5*time.Second)
	return found, !early && slices.Equal(found, []string{own + "later"})
}

// transactions: one is committed, one rolled back, and of one the broker asks.
func transactions(int) (any, bool) {
	asked := &Seen{}
	producer := startedProducer("TranT", client.WithTransactionChecker(&client.TransactionChecker{
		Check: func(view *client.MessageView) client.TransactionResolution {
			asked.add(string(view.GetBody()))
			return client.COMMIT
		},
	}))
	for _, kind := range []string{"committed", "rolled back", "asked"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), message("TranT", own+kind), transaction)
		check(err)
		switch kind {
		case "committed":
			check(transaction.Commit())
		case "rolled back":
			check(transaction.RollBack())
		}
	}
	seen := &Seen{}
	pushed("TranT", "go_tran", func(view *client.MessageView) bool {
		seen.add(string(view.GetBody()))
		return true
	})
	found := seen.await(2, time.Second)
	slices.Sort(found)
	return found, slices.Equal(found, []string{own + "asked", own + "committed"}) &&
		len(without(asked.all(), own+"asked")) == 0
}

// priorities: messages with priorities come, each once.
func priorities(count int) (any, bool) {
	producer := startedProducer("PriorityT")
	for i, body := range names("p", count) {
		sent := message("PriorityT", body)
		check(sent.SetPriority(int32(i % 3)))
		send(producer, sent)
	}
	seen := &Seen{}
	pushed("PriorityT", "go_priority", func(view *client.MessageView) bool {
		seen.add(string(view.GetBody()))
		return true
	})
	found := seen.await(count, 0)
	slices.Sort(found)
	wanted := names("p", count)
	slices.Sort(wanted)
	return found, slices.Equal(found, wanted)
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "see the head of main.go")
		os.Exit(2)
	}
	endpoints = os.Args[1]
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	client.EnableSsl = false
	check(os.Setenv("rocketmq.client.logLevel", "error")) // which is read again, and its logs are not the user's
	check(os.Setenv("rocketmq.client.logRoot", os.TempDir()))
	client.ResetLogger()
	flows := map[string]func(int) (any, bool){
		"simple": simple, "push": push, "fifo": fifo, "delay": delayed, "tran": transactions, "priority": priorities,
	}
	told, ok := map[string]any{}, true
	var lock sync.Mutex
	var under sync.WaitGroup
	for name, flow := range flows {
		under.Add(1)
		go func() {
			defer under.Done()
			found, good := flow(count)
			lock.Lock()
			defer lock.Unlock()
			told[name], ok = found, ok && good
			if !good {
				told[name+" failed"] = true
			}
		}()
	}
	under.Wait()
	told["ok"] = ok
	line, err := json.Marshal(told)
	check(err)
	fmt.Println(string(line))
	os.Exit(0) // not closed: that waits for the end of polls
}
