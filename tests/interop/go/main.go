// The official Go client at a broker, for tests. It prints an object a line: what was sent, or what came.
//
//	NAMESRV produce TOPIC COUNT                              COUNT of each kind: sync, async, oneway, batch, ordered; one delayed
//	NAMESRV push GROUP TOPIC TAGS COUNT SECONDS KIND         KIND is concurrent, orderly, or later: each message is sent back once
//	NAMESRV pull GROUP TOPIC COUNT SECONDS                   poll and acknowledge
//
// With TLS=true in the environment it speaks TLS, and takes any certificate: this client checks none.
// A consumer begins at the first message and ends after COUNT of them or SECONDS, whichever comes first.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const firstDelayLevel = 1

// After its timeout, 3 s unless told, this client sends again: a disk that takes longer would have messages twice.
const sendTimeout = time.Minute

// Told is a line of output.
type Told struct {
	Body           string `json:"body"`
	Tags           string `json:"tags,omitempty"`
	Keys           string `json:"keys,omitempty"`
	MsgID          string `json:"msg_id,omitempty"`
	QueueID        int    `json:"queue_id"`
	QueueOffset    int64  `json:"queue_offset"`
	ReconsumeTimes int32  `json:"reconsume_times"`
}

var printing sync.Mutex
var speaksTLS = os.Getenv("TLS") == "true"

func tell(told Told) {
	printing.Lock()
	defer printing.Unlock()
	line, err := json.Marshal(told)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func main() {
	rlog.SetLogLevel("error")
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "see the head of main.go")
		os.Exit(2)
	}
	resolver := primitive.NewPassthroughResolver([]string{os.Args[1]})
	given := os.Args[3:]
	switch os.Args[2] {
	case "produce":
		produce(resolver, given[0], number(given[1]))
	case "push":
		push(resolver, given[0], given[1], given[2], number(given[3]), number(given[4]), given[5])
	case "pull":
		pull(resolver, given[0], given[1], number(given[2]), number(given[3]))
	}
}

func produce(resolver primitive.NsResolver, topic string, count int) {
	p, err := rocketmq.NewProducer(producer.WithNsResolver(resolver), producer.WithGroupName("go_producers"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()), producer.WithSendMsgTimeout(sendTimeout),
		producer.WithTls(speaksTLS))
	check(err)
	check(p.Start())
	ctx := context.Background()
	message := func(kind string, i int) *primitive.Message {
		return primitive.NewMessage(topic, []byte(fmt.Sprintf("%s %d", kind, i))).WithTag(kind)
	}
	send := func(messages ...*primitive.Message) {
		result, err := p.SendSync(ctx, messages...)
		check(err)
		if result.Status != primitive.SendOK {
			check(fmt.Errorf("status %d", result.Status))
		}
		queue := result.MessageQueue.QueueId
		tell(Told{Body: string(messages[0].Body), MsgID: result.MsgID, QueueID: queue, QueueOffset: result.QueueOffset})
	}
	for i := 0; i < count; i++ {
		send(message("sync", i).WithKeys([]string{fmt.Sprintf("key-%d", i)}))
	}
	for i := 0; i < count; i++ {
		send(message("ordered", i).WithShardingKey(strconv.Itoa(i % 3)))
	}
	send(message("delayed", 0).WithDelayTimeLevel(firstDelayLevel))
	var batch []*primitive.Message
	for i := 0; i < count; i++ {
		batch = append(batch, message("batch", i))
	}
	send(batch...)
	for i := 0; i < count; i++ {
		check(p.SendOneWay(ctx, message("oneway", i)))
	}
	var answers sync.WaitGroup
	for i := 0; i < count; i++ {
		answers.Add(1)
		check(p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
			check(err)
			answers.Done()
		}, message("async", i)))
	}
	answers.Wait()
	check(p.Shutdown())
}

func received(m *primitive.MessageExt) Told {
	return Told{string(m.Body), m.GetTags(), m.GetKeys(), m.MsgId, m.Queue.QueueId, m.QueueOffset, m.ReconsumeTimes}
}

func options(resolver primitive.NsResolver, group string) []consumer.Option {
	return []consumer.Option{consumer.WithNsResolver(resolver), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithTls(speaksTLS)}
}

func push(resolver primitive.NsResolver, group, topic, tags string, count, seconds int, kind string) {
	c, err := rocketmq.NewPushConsumer(append(options(resolver, group), consumer.WithConsumerOrder(kind == "orderly"))...)
	check(err)
	came := make(chan struct{}, 1<<16)
	take := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, m := range messages {
			tell(received(m))
			came <- struct{}{}
			if kind == "later" && m.ReconsumeTimes == 0 {
				result = consumer.ConsumeRetryLater
			}
		}
		if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			concurrently.DelayLevelWhenNextConsume = firstDelayLevel
		}
		return result, nil
	}
	check(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, take))
	check(c.Start())
	deadline := time.After(time.Duration(seconds) * time.Second)
	for i := 0; i < count; i++ {
		select {
		case <-came:
		case <-deadline:
			i = count
		}
	}
	check(c.Shutdown())
}

func pull(resolver primitive.NsResolver, group, topic string, count, seconds int) {
	c, err := rocketmq.NewPullConsumer(options(resolver, group)...)
	check(err)
	check(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	check(c.Start())
	ctx, ends := context.WithTimeout(context.Background(), time.Duration(seconds)*time.Second)
	defer ends()
	for got := 0; got < count && ctx.Err() == nil; {
		request, err := c.Poll(ctx, time.Second)
		if err != nil {
			continue
		}
		for _, m := range request.GetMsgList() {
			tell(received(m))
			got++
		}
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	check(c.Shutdown())
}
